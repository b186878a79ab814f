"""Quantized checkpoints: one module for each format, which decodes a layer's stored tensors without other packages."""
