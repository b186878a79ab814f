"""Calls of kernels in a loaded library: arguments are structures of 64-bit fields."""

import ctypes
from typing import Any

import torch

count_threads = torch.get_num_threads


def int64_fields(names: str) -> list[tuple[str, type[ctypes.c_int64]]]:
    """Structure fields of 64 bits each. Addresses are integers; strides count elements."""
    return [(name, ctypes.c_int64) for name in names.split()]


def read_constant(library: ctypes.CDLL, name: str) -> int:
    """Calls a function of the library that takes no arguments and returns an int64."""
    function = getattr(library, f"antiphon_{name}")
    function.restype = ctypes.c_int64
    return int(function())


def load_function(library: ctypes.CDLL, name: str, args: type[ctypes.Structure], *scalars: Any) -> Any:
    """Returns a kernel that takes a pointer to its arguments, then scalars of the given types."""
    function = getattr(library, f"antiphon_{name}")
    function.argtypes, function.restype = [ctypes.POINTER(args), *scalars], None
    return function
