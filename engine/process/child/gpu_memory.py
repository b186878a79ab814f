"""Memory of GPUs that a worker process holds."""

import sys
import time
from collections.abc import Callable

import msgspec

from antiphon.engine.protocol import EngineStats

GPU_MEMORY_INTERVAL_S = 1.0
"""Time between two measurements: each takes some ten microseconds."""


class GpuMemory:
    """Measures the memory that torch's allocator holds, if the engine is on a GPU. It imports no torch."""

    def __init__(self, device: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_gpu, self._clock = device.startswith("cuda"), clock
        self._num_bytes, self._next_at = 0, 0.0

    def add_to(self, stats: EngineStats) -> EngineStats:
        """Returns the counts of a step with the memory as of a moment ago."""
        if not self._is_gpu:
            return stats
        if (now := self._clock()) >= self._next_at:
            self._next_at, self._num_bytes = now + GPU_MEMORY_INTERVAL_S, _measure_bytes()
        return msgspec.structs.replace(stats, gpu_memory_bytes=self._num_bytes)


def _measure_bytes() -> int:
    torch = sys.modules.get("torch")
    return 0 if torch is None else sum(map(torch.cuda.memory_reserved, range(torch.cuda.device_count())))
