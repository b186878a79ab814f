"""Compiles C sources with the machine's C compiler and loads the library, once for each kind of CPU.

The library is stored in the user's cache folder. Its name contains a hash of the sources, the flags, the platform and
the CPU, so a change of any of them compiles a new one. The environment variable `CC` selects the compiler,
`XDG_CACHE_HOME` the cache folder.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from antiphon.engine.errors import one_line

COMPILERS = ("cc", "gcc", "clang")
COMPILER_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-ffp-contract=off", "-w")
"""Flags of every source. Compilers differ in the products and sums that they join, so the sources do it themselves."""

LINKER_FLAGS = ("-shared", "-lm")
NATIVE_FLAGS = (("-march=native",), ("-mcpu=native",), ())
"""Flags that select this machine's CPU, tried in this order: no compiler accepts all of them on every architecture."""

ARM_MACHINES = {"aarch64", "arm64"}
ARM_DOT_PRODUCT_FLAGS = ("-march=armv8.2-a+dotprod",)
"""Flags for an ARM CPU that has the instructions that matter most, if the compiler does not know the CPU itself."""

INCLUDE_DIR = Path(__file__).parent
"""Folder of the headers that the sources share."""

COMPILE_TIMEOUT_S = 60
"""Seconds that a compiler may run. It needs about one."""


class CompilationError(Exception):
    """The library could not be compiled or must not be used. The message contains the reason."""


def load_library(*sources: Path) -> ctypes.CDLL:
    """Compiles and loads the sources, or loads the cached library. Raises `CompilationError`."""
    try:
        code = [path.read_bytes() for path in (*sources, *sorted(INCLUDE_DIR.glob("*.h")))]
        name = f"kernels-{_build_key(code)}.so"
        folder = cache_folder()
        if folder is not None:
            with suppress(OSError):  # not compiled so far, or not loadable
                return ctypes.CDLL(str(folder / name))
        return _build_library(sources, folder, name)
    except (OSError, subprocess.SubprocessError) as failure:
        raise CompilationError(one_line(failure)) from failure


def name_cache_folder() -> str:
    """Returns the path of the cache folder for messages. It may not be usable."""
    return f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/antiphon"


def cache_folder() -> Path | None:
    """Returns the folder for compiled libraries: `antiphon` in `$XDG_CACHE_HOME` or `~/.cache`.

    Returns None if the folder belongs to another user, if other users can write to it (they could inject code into
    this process), or if it cannot be created.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_private = folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o022
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    return folder if is_private and os.access(folder, os.W_OK) else None


def _build_library(sources: tuple[Path, ...], cache_dir: Path | None, name: str) -> ctypes.CDLL:
    """Compiles the library and loads it. Moves it into `cache_dir` atomically; without one, no file remains."""
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch_folder:
        library_path = Path(scratch_folder) / name
        _run_compiler(sources, library_path)
        library = ctypes.CDLL(str(library_path))
        if cache_dir is not None:
            library_path.replace(cache_dir / name)
        return library


def _run_compiler(sources: tuple[Path, ...], output: Path) -> None:
    """Compiles the sources, one for each core at a time, and links them. Raises `CompilationError`."""
    compiler = _find_compiler()
    objects = [output.with_name(f"{index}.o") for index in range(len(sources))]
    error_line = ""
    for native in select_native_flags(platform.machine(), _read_cpu_features()):
        command = [*compiler, *COMPILER_FLAGS, *native, "-I", str(INCLUDE_DIR)]
        calls = [[*command, "-c", str(source), "-o", str(file)] for source, file in zip(sources, objects, strict=True)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            errors = [error for error in pool.map(_find_error, calls) if error]
        link = [*compiler, *native, *map(str, objects), *LINKER_FLAGS, "-o", str(output)]
        error = errors[0] if errors else _find_error(link)
        if error is None:
            return
        error_line = error_line or error
    raise CompilationError(f"{compiler[0]}: {error_line}")


def _find_error(command: list[str]) -> str | None:
    """Runs a compiler. Returns the first error that it reports, None if it succeeds."""
    result = subprocess.run(  # noqa: S603  the arguments are constants, our own paths, and the operator's $CC
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=COMPILE_TIMEOUT_S,
        check=False,
        env=os.environ | {"LC_ALL": "C"},
    )
    if result.returncode == 0:
        return None
    return next((text for text in result.stderr.splitlines() if " error: " in text), "compilation failed")


def select_native_flags(machine: str, features: str) -> Sequence[tuple[str, ...]]:
    """Returns the flags to try in this order, for the name and the features of a CPU as its system reports them."""
    if machine not in ARM_MACHINES:
        return NATIVE_FLAGS
    # "asimddp" on Linux, "FEAT_DotProd" on macOS
    has_dot_product = "asimddp" in features or "FEAT_DotProd: 1" in features
    return (("-mcpu=native",), *[ARM_DOT_PRODUCT_FLAGS] * has_dot_product, ())


def _find_compiler() -> list[str]:
    """Returns `$CC`, which may contain arguments, or the first compiler of `COMPILERS` that is installed."""
    configured = os.environ.get("CC", "").split()
    for command in [configured] if configured else [[name] for name in COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise CompilationError(f"no C compiler found (tried {' '.join(configured) or ', '.join(COMPILERS)})")


def _build_key(code: list[bytes]) -> str:
    """Returns a hash, 16 hexadecimal digits, of everything that the library depends on."""
    flags = repr((COMPILER_FLAGS, LINKER_FLAGS, os.environ.get("CC", "").split())).encode()
    parts = [*code, flags, platform.platform().encode(), _cpu_description()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _cpu_description() -> bytes:
    """Returns the CPU's model and features, since machines may share a home folder."""
    return (_read_cpu_features() or platform.processor()).encode()


@functools.cache
def _read_cpu_features() -> str:
    """Returns the CPU's model and features as the system reports them; "" if it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        fields: tuple[str, ...] = ("model name", "flags", "Features", "CPU part")
    except OSError:
        if platform.system() != "Darwin":
            return ""
        command = ["/usr/sbin/sysctl", "machdep.cpu.brand_string", "hw.optional"]
        lines = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout.splitlines()  # noqa: S603
        fields = ("machdep.cpu.brand_string", "hw.optional.arm.")
    return "\n".join(dict.fromkeys(text for text in lines if text.startswith(fields)))
