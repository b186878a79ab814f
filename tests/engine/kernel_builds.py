"""The compiled kernels for tests. A missing compiler skips a test; a library that is refused fails it."""

import os
import shutil
import subprocess
from typing import NoReturn

import pytest

from antiphon.engine.kernels import compiler
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.compiler import COMPILERS, CompilationError, load_library
from antiphon.engine.kernels.library import SOURCES, verify_kernels
from tests.counts import FULL_COUNTS

PORTABLE_FLAGS = "-mno-amx-int8 -mno-avx512f -mno-avx -DFUSED_MULTIPLY_ADD"
"""Compiler flags for portable C with four lanes, which rounds a product and its sum once, as ARM's instructions do."""

INSTRUCTION_SET_FLAGS = [
    "",
    "-mno-amx-int8",
    "-mno-amx-int8 -mno-avx512vnni",
    "-mno-amx-int8 -mno-avx512f",
    "-mno-amx-int8 -mno-avx512f -mno-avxvnni",
    PORTABLE_FLAGS,
]
"""Compiler flags that disable instruction sets one by one. On a CPU without one of them, two builds are equal."""


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


def build_kernels(flags: str, factory: pytest.TempPathFactory) -> Kernels:
    """Compiles the kernels with the flags, once for all processes of a test run.

    Skips the test if the compiler does not know the flags. The short run optimizes less, which takes a third.
    """
    base = factory.getbasetemp()
    run_folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(run_folder / "compiled-kernels"))
        patch.setenv("CC", f"{find_c_compiler()} {flags}")
        if not FULL_COUNTS:
            patch.setattr(compiler, "COMPILER_FLAGS", ("-O1", *compiler.COMPILER_FLAGS[1:]))
        _skip_if_flags_are_unknown(flags)
        return require_kernels()


def _skip_if_flags_are_unknown(flags: str) -> None:
    """Skips the test if the compiler does not know the flags, as on another architecture."""
    args = [find_c_compiler(), *flags.split(), "-fsyntax-only", "-x", "c", "/dev/null"]
    if subprocess.run(args, capture_output=True, check=False).returncode:
        pytest.skip(f"the C compiler does not know {flags}")


def _refuse(error: Exception) -> NoReturn:
    pytest.fail(f"the compiled kernels are refused: {error}", pytrace=False)
