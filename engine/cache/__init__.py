"""KV caches: contiguous ones for the CPU, paged ones for CUDA."""
