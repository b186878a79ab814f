"""From C files to a library in this process, by the compiler that the machine has, once for each kind of CPU.

What was compiled is kept in the user's cache folder, under a name that says from what, how, and for which CPU.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from antiphon.engine.errors import one_line

COMPILERS = ("cc", "gcc", "clang")
COMPILER_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-w")
NATIVE_FLAGS = (("-march=native",), ("-mcpu=native",), ())
"""How a compiler is asked for this very CPU; not every one understands each."""

INCLUDE_DIR = Path(__file__).parent
"""Where what the files share lies."""

COMPILE_TIMEOUT_S = 60
"""Seconds that a compiler may take; it needs one."""


class CompilationError(Exception):
    """There is no library; the message says why."""


def load_library(*sources: Path) -> ctypes.CDLL:
    """The C files, compiled with :data:`HEADERS` and loaded. Raises :class:`CompilationError`."""
    try:
        code = [path.read_bytes() for path in (*sources, *sorted(INCLUDE_DIR.glob("*.h")))]
        name = f"kernels-{_build_key(code)}.so"
        place = cache_folder()
        if place is not None:
            with suppress(OSError):  # none yet, or one that is of no use
                return ctypes.CDLL(str(place / name))
        return _build_library(sources, place, name)
    except (OSError, subprocess.SubprocessError) as failure:
        raise CompilationError(one_line(failure)) from failure


def cache_folder() -> Path | None:
    """Where compiled libraries are kept: ``antiphon`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; None: nowhere.

    Never where others may write: whoever can put a library there is let into the process.
    """
    try:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = place.stat().st_uid == os.geteuid() and not place.stat().st_mode & 0o022
    except (OSError, RuntimeError):  # the latter where nobody knows a home
        return None
    return place if mine and os.access(place, os.W_OK) else None


def _build_library(sources: tuple[Path, ...], place: Path | None, name: str) -> ctypes.CDLL:
    """Compile it next to where it is kept, so that nobody ever sees half of it; or only for now."""
    with tempfile.TemporaryDirectory(dir=place) as rooms:
        built = Path(rooms) / name
        _run_compiler(sources, built)
        loaded = ctypes.CDLL(str(built))
        if place is not None:
            built.replace(place / name)
        return loaded


def _run_compiler(sources: tuple[Path, ...], built: Path) -> None:
    compiler = _find_compiler()
    said = ""
    for native in NATIVE_FLAGS:
        words = [
            *compiler,
            *COMPILER_FLAGS,
            *native,
            "-I",
            str(INCLUDE_DIR),
            *map(str, sources),
            "-o",
            str(built),
            "-lm",
        ]
        done = subprocess.run(  # noqa: S603  the words are ours and the machine's owner's
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT_S,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
        if done.returncode == 0:
            return
        said = said or next((line for line in done.stderr.splitlines() if " error: " in line), "it failed")
    raise CompilationError(f"{compiler[0]}: {said}")


def _find_compiler() -> list[str]:
    """``$CC``, which may be several words, or the first that is there."""
    wanted = os.environ.get("CC", "").split()
    for words in [wanted] if wanted else [[name] for name in COMPILERS]:
        if shutil.which(words[0]):
            return words
    raise CompilationError(f"no C compiler was found ({' '.join(wanted) or ', '.join(COMPILERS)})")


def _build_key(code: list[bytes]) -> str:
    """What the result depends on, as a few letters."""
    parts = [*code, repr(COMPILER_FLAGS).encode(), platform.platform().encode(), _cpu_description()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _cpu_description() -> bytes:
    """What this CPU can do, as the system says it; a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    named = (b"model name", b"flags", b"Features", b"CPU part")
    return b"\n".join(dict.fromkeys(line for line in lines if line.startswith(named)))
