"""The compiled kernels for tests. A missing compiler skips a test; a library that is refused fails it."""

import hashlib
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from antiphon.engine.kernels import compiler
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.compiler import COMPILERS, CompilationError, load_library
from antiphon.engine.kernels.library import SOURCES, verify_kernels
from tests.counts import FULL_COUNTS
from tests.install_lock import find_run_folder, hold_lock
from tests.syntax import ROOT

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


OBJECT_FOLDER = ROOT / "build" / "kernel-objects"
"""Objects by what they were compiled from. `make clean` removes them."""


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

    Skips the test if the compiler does not know the flags.
    """
    folder = find_run_folder(factory) / "compiled-kernels"
    with pytest.MonkeyPatch.context() as patch, hold_lock(folder):
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("CC", f"{find_c_compiler()} {flags}")
        _skip_if_flags_are_unknown(flags)
        speed_up_compiler(patch)
        return require_kernels()


def speed_up_compiler(patch: pytest.MonkeyPatch) -> None:
    """Makes the compiler take objects that a test run has compiled before. The short run optimizes less.

    Two sources give the same object if they are equal after preprocessing, with the macros that the compiler defines
    for its version and its instruction sets: sources and flags of different builds often are.
    """
    compile_or_link = compiler._find_error
    OBJECT_FOLDER.mkdir(parents=True, exist_ok=True)

    def reuse_object(command: list[str]) -> str | None:
        if "-c" not in command:
            return compile_or_link(command)
        preprocess = [*command[: command.index("-c")], "-E", "-P", "-dD", command[command.index("-c") + 1]]
        done = subprocess.run(preprocess, capture_output=True, check=False)
        key = hashlib.sha256(b"%s %s" % (" ".join(compiler.COMPILER_FLAGS).encode(), done.stdout)).hexdigest()
        place, target = OBJECT_FOLDER / f"{key}.o", Path(command[command.index("-o") + 1])
        if done.returncode or not place.exists():
            error = compile_or_link(command)
            if error is None:
                copy = place.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
                shutil.copyfile(target, copy)
                copy.replace(place)
            return error
        shutil.copyfile(place, target)
        return None

    patch.setattr(compiler, "_find_error", reuse_object)
    if not FULL_COUNTS:
        patch.setattr(compiler, "COMPILER_FLAGS", ("-O1", *compiler.COMPILER_FLAGS[1:]))


def _skip_if_flags_are_unknown(flags: str) -> None:
    """Skips the test if the compiler does not know the flags, as on another architecture."""
    args = [find_c_compiler(), *flags.split(), "-fsyntax-only", "-x", "c", "/dev/null"]
    if subprocess.run(args, capture_output=True, check=False).returncode:
        pytest.skip(f"the C compiler does not know {flags}")


def _refuse(error: Exception) -> NoReturn:
    pytest.fail(f"the compiled kernels are refused: {error}", pytrace=False)
