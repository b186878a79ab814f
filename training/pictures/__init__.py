"""Pictures as input of the embedded model: their generator, the training of the vision tower, and the evaluation."""
