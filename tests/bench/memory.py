"""How fast memory is read: `python -m tests.bench.memory [cuda]` prints GB/s. In a process of its own, for torch.

Weights are read once a step, so bytes of weights / this rate is the shortest step there can be.
"""

import os
import sys
import time

import torch

SIZE = 2**30
TRIES = 7


def bandwidth(device: str) -> float:
    """GB/s of summing `SIZE` bytes with all that the device has, the best of `TRIES`."""
    torch.set_num_threads(os.cpu_count() or 1)
    values = torch.ones(SIZE // 4, device=device)
    best = 0.0
    for _ in range(TRIES):
        begun = time.perf_counter()
        values.sum().item()  # a GPU is waited for
        best = max(best, SIZE / (time.perf_counter() - begun) / 1e9)
    return best


if __name__ == "__main__":
    print(f"{bandwidth(*sys.argv[1:] or ['cpu']):.2f}")
