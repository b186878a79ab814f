"""Layers with a state per sequence (linear attention, Mamba, short convolutions), on the packed forward pass."""
