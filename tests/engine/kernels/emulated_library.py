"""The kernels compiled for another CPU and run under QEMU, behind the interface of a loaded library.

`EmulatedLibrary` stands in for the `ctypes.CDLL` of `Kernels`. A call sends the memory that its arguments
point to, and writes back what the kernel changed. Only tensors created within `TensorRecorder` can be sent.
"""

import ctypes
import re
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from antiphon.engine.kernels.compiler import COMPILER_FLAGS, INCLUDE_DIR
from antiphon.engine.kernels.library import SOURCES

DRIVER = Path(__file__).with_name("emulated_calls.c")
FUNCTION_PATTERN = re.compile(r"^(?:void|int64_t) antiphon_(\w+)\(", re.MULTILINE)
ADDRESS_TABLES = {"spans": ("num_spans", 9), "rows": ("outputs", 1), "groups": ("num_groups", 6)}
"""Fields with the address of a table of 64-bit fields: the field with its number of rows, and the length of a row."""

VALUE_BYTES = {"softcap": 4}
"""Fields with the address of a value that is no tensor's, and its size."""

LOWEST_ADDRESS = 1 << 32
"""No size is as large, and no address of a tensor as small."""


class TensorRecorder(TorchDispatchMode):
    """Keeps the memory of every tensor that is created while it is active, so that an address can be looked up."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and records its results."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage.nbytes():  # an empty one has no address
                    self._storages[storage.data_ptr()] = storage
        return result

    def find(self, address: int) -> tuple[int, int] | None:
        """Returns the start and the size of the memory of a tensor that contains the address, or None."""
        starts = sorted(self._storages)
        index = bisect_right(starts, address) - 1
        if index < 0 or address > starts[index] + self._storages[starts[index]].nbytes():
            return None
        return starts[index], self._storages[starts[index]].nbytes()


class EmulatedLibrary:
    """The functions of a library in a process of its own. Use it as a context manager, which ends the process."""

    def __init__(self, command: list[str], functions: list[str], memory: TensorRecorder) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._functions, self._memory = functions, memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __getattr__(self, name: str) -> "EmulatedFunction":
        name = name.removeprefix("antiphon_")
        if name not in self._functions:
            raise AttributeError(name)
        return EmulatedFunction(self, self._functions.index(name))

    def call(self, function: int, args: ctypes.Structure | None, scalar: float) -> int:
        """Calls a function and returns its result."""
        regions = [(0, 0)] if args is None else [(ctypes.addressof(args), ctypes.sizeof(args))]
        relocations = [] if args is None else list(self._relocate(args, regions))
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        request = [struct.pack("<qqqd", function, len(regions), len(relocations), scalar)]
        request += [struct.pack("<q", size) + ctypes.string_at(start, size) for start, size in regions]
        stdin.write(b"".join([*request, *(struct.pack("<4q", *entry) for entry in relocations)]))
        stdin.flush()
        result = stdout.read(8)
        if len(result) < 8:
            raise RuntimeError(f"the emulated process ended with status {self._process.wait()}")
        for index, (start, size) in enumerate(regions):
            content = stdout.read(size)
            if index:  # addresses in the arguments are those of the other process
                kept = [position for buffer, position, *_ in relocations if buffer == index]
                _write_back(start, content, kept)
        return int.from_bytes(result, "little", signed=True)

    def _relocate(self, args: ctypes.Structure, regions: list[tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
        """Yields the relocations of a structure and its tables. Adds the memory that they point to.

        Structures may contain others: all fields are 64 bits wide.
        """
        tables = {
            getattr(type(args), name).offset: 8 * width * getattr(args, count_field)
            for name, (count_field, width) in ADDRESS_TABLES.items()
            if hasattr(args, name) and hasattr(args, count_field) and getattr(args, name)
        }
        values = {getattr(type(args), name).offset: size for name, size in VALUE_BYTES.items() if hasattr(args, name)}
        for position, value in _read_words(ctypes.addressof(args), ctypes.sizeof(args)):
            if value and position in values:
                regions.append((value, values[position]))
                yield 0, position, len(regions) - 1, 0
                continue
            if position not in tables:
                yield from self._relocate_value(value, 0, position, regions)
                continue
            regions.append((value, tables[position]))
            table = len(regions) - 1
            yield 0, position, table, 0
            for entry_position, entry in _read_words(value, tables[position]):
                yield from self._relocate_value(entry, table, entry_position, regions)

    def _relocate_value(
        self, value: int, buffer: int, position: int, regions: list[tuple[int, int]]
    ) -> Iterator[tuple[int, int, int, int]]:
        region = self._memory.find(value)
        if region is None and value >= LOWEST_ADDRESS:
            raise ValueError(f"byte {position} of the arguments points to memory that is no recorded tensor's")
        if region is not None:
            if region not in regions:
                regions.append(region)
            yield buffer, position, regions.index(region), value - region[0]


def _read_words(start: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields the position and the value of each 64-bit integer."""
    for position in range(0, size, 8):
        yield position, ctypes.c_int64.from_address(start + position).value


class EmulatedFunction:
    """A function of an `EmulatedLibrary`. ctypes' attributes may be set and have no effect."""

    def __init__(self, library: EmulatedLibrary, index: int) -> None:
        self._library, self._index = library, index
        self.argtypes: Any = None
        self.restype: Any = None

    def __call__(self, args: ctypes.Structure | None = None, scalar: float = 0.0) -> int:
        return self._library.call(self._index, args, scalar)


def _write_back(start: int, content: bytes, kept: list[int]) -> None:
    """Replaces the memory from an address on, except for the 8 bytes at each position of `kept`."""
    first = 0
    for position in [*sorted(kept), len(content)]:
        ctypes.memmove(start + first, content[first:position], position - first)
        first = position + 8


def compile_driver(compiler: str, flags: list[str], output: Path) -> list[str]:
    """Compiles all kernels and the driver to a static executable. Returns the names of the functions, in its order."""
    names = [name for source in SOURCES for name in FUNCTION_PATTERN.findall(source.read_text())]
    names = list(dict.fromkeys(names))
    table = f"-DFUNCTIONS={' '.join(f'FUNCTION({name})' for name in names)}"
    common = [flag for flag in COMPILER_FLAGS if flag not in ("-O3", "-fPIC")]
    sources = [str(path) for path in (*SOURCES, DRIVER)]
    command = [compiler, "-O1", *common, "-static", *flags, table, "-I", str(INCLUDE_DIR), *sources, "-o", str(output)]
    subprocess.run([*command, "-lm"], check=True)
    return names
