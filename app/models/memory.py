"""Estimates the memory of models from their files, divides `--memory-gib` among them, and measures worker processes.

An estimate holds until a model has been loaded once; from then on, what its process took counts.
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from antiphon.app.models.memory_pool import GIB
from antiphon.app.options.serve_options import ServeError
from antiphon.app.registry.engine_wrapper import unwrap_engine
from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.checkpoint.resident_size import estimate_resident_size
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.resident_memory import read_resident_bytes
from antiphon.engine.protocol import Engine

PROCESS_BYTES = GIB // 2
"""Memory of a worker process without a model: the interpreter, torch, and buffers of a step."""
SMALLEST_SHARE_BYTES = GIB // 4
"""KV cache with which it is still better that all models are loaded at once."""
SHARED_CACHE_BYTES = GIB
"""KV cache of each model if not all of them fit into the memory at once."""
MIN_CACHE_BYTES = GIB // 8
"""KV cache of a model for which an estimate leaves no memory: the estimate may be too high."""
HEADROOM = 0.95
"""Part of the limit that is planned for: an estimate may be too low."""
WEIGHT_BYTES: dict[str | None, tuple[float, float]] = {None: (2.0, 4.0), "int8": (1.0, 1.3), "int4": (0.5, 0.9)}
"""Bytes per weight by quantization: the least that is possible, and the expected number."""
PACKED_GROWTH = 1.3
"""Memory of a quantized checkpoint relative to its files, if its weights are used as they are stored."""
FP32_BYTES = 4
LEAST_OF_COUNT = 0.8
"""Part of the elements of a quantized checkpoint that are weights at least: the others are scales and zero points."""
HELD_GROWTH = 1.1
"""Memory of a packed checkpoint relative to its weights: rows are padded, and have a scale and a sum."""


class MemoryEstimate(Struct, frozen=True):
    """Bytes that the weights of a model take: the least that is possible, and the expected number."""

    least: int
    expected: int


def estimate_weights(checkpoint: Checkpoint, options: EngineOptions) -> MemoryEstimate:
    """Returns an estimate for a model that generates text, from the headers of its files."""
    least, expected = WEIGHT_BYTES[options.quantization]
    is_cuda = options.device is not None and options.device.startswith("cuda")
    if options.dtype == "float32":
        size = checkpoint.weight_bytes(FP32_BYTES, unpacks=True)
        return MemoryEstimate(int(size * LEAST_OF_COUNT), int(size * HELD_GROWTH))
    held = None if is_cuda else estimate_resident_size(checkpoint, options.quantization)
    if held is not None:
        return MemoryEstimate(held.packed, int((held.packed + held.mapped) * HELD_GROWTH))
    if checkpoint.quantization_method is not None:
        stored = checkpoint.weight_bytes(1)
        return MemoryEstimate(int(stored * min(least / 2, 1)), int(stored * PACKED_GROWTH))
    if is_cuda:
        expected = least
    num_weights = checkpoint.weight_bytes(1)
    return MemoryEstimate(int(num_weights * least), int(num_weights * expected))


def estimate_encoder(folder: Path | None) -> MemoryEstimate:
    """Returns an estimate for an embedding or reranking model, which is computed in fp32."""
    if folder is None:
        return MemoryEstimate(0, 0)
    size = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    return MemoryEstimate(size, 2 * size)


def check_fits(name: str, estimate: MemoryEstimate, memory_gib: float) -> None:
    """Raises `ServeError` for a model that can never fit into the memory."""
    least = _least_bytes(estimate)
    if least > memory_gib * GIB:
        raise ServeError(
            f"--memory-gib {memory_gib:g}: {name} needs at least {least / GIB:.2f} GiB; "
            "raise it, choose a smaller form with --quantization, or leave the model out"
        )


def _least_bytes(estimate: MemoryEstimate) -> int:
    return estimate.least + PROCESS_BYTES // 2


def divide_cache(estimates: Sequence[MemoryEstimate], index: int, num_models: int, memory_gib: float) -> float:
    """Returns the KV cache in GiB of one of `num_models`. `estimates` are theirs, then those of encoders.

    If all models fit into the memory at once, the rest is divided equally among them. If not, each gets a fixed size.
    """
    memory = memory_gib * GIB * HEADROOM
    share = (memory - sum(each.expected + PROCESS_BYTES for each in estimates)) / num_models
    own_rest = memory - estimates[index].expected - PROCESS_BYTES
    cache = share if share >= SMALLEST_SHARE_BYTES else SHARED_CACHE_BYTES
    return max(min(cache, own_rest), MIN_CACHE_BYTES) / GIB


def needed_bytes(estimate: MemoryEstimate, cache_gib: float) -> int:
    """Returns the memory to reserve for a model that has not been loaded yet."""
    return estimate.expected + PROCESS_BYTES + int(cache_gib * GIB)


def measure_engine(engine: Engine, estimate: MemoryEstimate) -> int | None:
    """Returns the memory that a loaded model takes; None if it is unknown.

    The memory of the engine's process says nothing about a model on a GPU. Weights that are mapped from a file count
    before they have been read, too.
    """
    pid = getattr(unwrap_engine(engine), "pid", None)
    if not isinstance(pid, int) or not engine.info.device.startswith("cpu"):
        return None
    resident = read_resident_bytes(pid)
    return None if resident is None else max(resident, _least_bytes(estimate))
