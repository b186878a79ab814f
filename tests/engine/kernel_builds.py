"""The compiled kernels for tests. A missing compiler skips a test; a library that is refused fails it."""

import shutil
from typing import NoReturn

import pytest
import torch

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.compiler import COMPILERS, CompilationError, load_library
from antiphon.engine.kernels.library import SOURCES, verify_kernels


def find_c_compiler() -> str:
    """Returns a C compiler of this machine. Skips the test if there is none."""
    for name in COMPILERS:
        if shutil.which(name):
            return name
    pytest.skip(f"no C compiler found (tried {', '.join(COMPILERS)})")


def require_kernels() -> Kernels:
    """Compiles or loads the kernels and compares them with torch, as the engine does. Fails if they are refused."""
    find_c_compiler()
    try:
        return verify_kernels(load_library(*SOURCES))
    except (CompilationError, AttributeError) as error:
        _refuse(error)


def require_int8_kernels() -> Kernels:
    """As :func:`require_kernels`, with an int8 linear layer. Skips the test if the CPU has no instructions for it."""
    kernels = require_kernels()
    if not kernels.supports_int8_linear(torch.ones(1, 1)):
        pytest.skip("no int8 kernel for this CPU")
    return kernels


def _refuse(error: Exception) -> NoReturn:
    pytest.fail(f"the compiled kernels are refused: {error}", pytrace=False)
