"""Memory read bandwidth: `python -m bench.memory_bandwidth [cuda]` prints GB/s. A process of its own loads torch.

Every step reads the weights once, so bytes of weights / bandwidth is the shortest possible step.
"""

import argparse
import os
import time

import torch

READ_BYTES = 2**30
"""Bytes of the array that one try reads."""
TRIES = 7


def measure_bandwidth(device: str) -> float:
    """Returns the GB/s of summing `READ_BYTES` bytes on the whole device, the best of `TRIES`."""
    torch.set_num_threads(os.cpu_count() or 1)
    values = torch.ones(READ_BYTES // 4, device=device)
    best = 0.0
    for _ in range(TRIES):
        start = time.perf_counter()
        values.sum().item()  # also waits for a GPU
        best = max(best, READ_BYTES / (time.perf_counter() - start) / 1e9)
    return best


def main() -> None:
    """Prints the bandwidth of the device that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default="cpu")
    print(f"{measure_bandwidth(parser.parse_args().device):.2f}")


if __name__ == "__main__":
    main()
