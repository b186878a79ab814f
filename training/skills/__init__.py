"""Skills of the embedded model: one function per skill builds a training or evaluation dialogue."""
