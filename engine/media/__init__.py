"""Pictures in the engine: the model's vision tower, features of pictures, and their places in sequences."""
