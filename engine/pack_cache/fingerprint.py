"""Names of packed files: hashes of everything that the packed weights, and the checks of a start, depend on."""

import hashlib
import os
import struct
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

from antiphon.engine.host.hardware import cpu_features
from antiphon.engine.options import EngineOptions

LAYOUT_VERSION = 2
"""Raised when packed weights change in a way that the sources of the layouts do not show."""

ENGINE_DIR = Path(__file__).parents[1]
LAYOUT_SOURCES = (
    *("kernels/*_layout.py", "kernels/pack.c", "kernels/pack.py", "checkpoint/quantized/*.py", "checkpoint/gguf/*.py"),
    *("forward/experts/*.py", "load/experts/stored.py", "load/experts/grouped.py", "optimize/experts/pack.py"),
)
"""Sources that decide about the bytes of packed weights."""

CHECKED_FOLDERS = (
    *("cache", "checkpoint", "forward", "host", "kernels", "load", "model_build", "optimize", "pack_cache"),
)
"""Folders whose code the checks of a start run."""

NUMBER_SOURCES = ("adapters/*.py", "scheduler/*.py", "prefix_disk/*.py")
"""Sources besides those of `hash_checks` that decide about the bits of keys and values."""

SAMPLES, SAMPLE_BYTES = 64, 4096
"""Parts of a weight file that its fingerprint covers besides the header: tools may preserve or fake its time."""

GGUF_START_BYTES = 1 << 20
"""Bytes at the start of a GGUF file that its fingerprint covers: hyperparameters, and parts of the vocabulary."""

CHECKED_OPTIONS = ("quantization", "dtype", "pack_linears", "compile_kernels", "kv_cache_dtype", "paged_cache")
"""Options that the result of a start's checks depends on."""


def hash_model(folder: Path) -> str:
    """Returns a hash of the model's files, wherever they are: the weights' headers, sizes, times and samples."""
    parts: list[bytes] = []
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.gguf")]):
        status = path.stat()
        parts.append(repr((path.name, status.st_size, status.st_mtime_ns)).encode())
        parts += _read_samples(path, status.st_size)
    parts += [path.read_bytes() for path in sorted(folder.glob("*config.json"))]
    return _hash_parts(parts)


def _read_samples(path: Path, size: int) -> Iterable[bytes]:
    """Yields the header of a safetensors file or the start of another, and parts of the weights at even distances."""
    with path.open("rb") as file:
        start = file.read(8)
        header_bytes = GGUF_START_BYTES if path.suffix == ".gguf" else struct.unpack("<Q", start.ljust(8, b"\0"))[0]
        yield file.read(header_bytes)
        for index in range(SAMPLES):
            file.seek(size * index // SAMPLES)
            yield file.read(SAMPLE_BYTES)


def hash_layout(form: str, lanes: int) -> str:
    """Returns a hash of what the packed form of a weight depends on: the code that packs it, and the kind of CPU."""
    decoder = version("gguf") if find_spec("gguf") is not None else ""
    kind = repr((LAYOUT_VERSION, form, lanes, sys.byteorder, decoder)).encode()
    return _hash_parts([kind, _hash_sources(LAYOUT_SOURCES).encode()])


def hash_checks(options: EngineOptions) -> str:
    """Returns a hash of what the checks of a start depend on: the engine's code, its libraries, options and CPU."""
    versions = (torch.__version__, transformers.__version__, sys.version, cpu_features(), os.environ.get("CC"))
    values: list[Any] = [getattr(options, name) for name in CHECKED_OPTIONS]
    sources = ("*.py", "kernels/*.[ch]", *(f"{folder}/**/*.py" for folder in CHECKED_FOLDERS))
    return _hash_parts([repr((versions, values)).encode(), _hash_sources(sources).encode()])


def hash_numbers(options: EngineOptions, form: str) -> str:
    """Returns a hash of what the keys and values of a token depend on, besides the files of the model and the tokens.

    `form` tells what the start has chosen. Any other code counts as another one.
    """
    return _hash_parts([hash_checks(options).encode(), _hash_sources(NUMBER_SOURCES).encode(), form.encode()])


@cache
def _hash_sources(patterns: tuple[str, ...]) -> str:
    paths = sorted({path for pattern in patterns for path in ENGINE_DIR.glob(pattern)})
    return _hash_parts(path.read_bytes() for path in paths)


def _hash_parts(parts: Iterable[bytes]) -> str:
    """Returns 20 hexadecimal digits. The length of each part counts, so that no two lists have the same bytes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return digest.hexdigest()[:20]
