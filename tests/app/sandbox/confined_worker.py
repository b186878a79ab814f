"""A program in place of a process that reads pictures, for `python -m`: it tries what such a process must not do.

The name of a model's type says what.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from antiphon.app.sandbox.media.messages import (
    DescribeRequest,
    MediaRequest,
    PreparedReply,
    ProcessorFacts,
)
from antiphon.app.sandbox.media.serving import HandleMedia, MediaResult, serve_media
from antiphon.app.sandbox.messages import HEAD
from antiphon.engine.media_messages import MediaArray


def _connect() -> str:
    with socket.create_connection(("127.0.0.1", 9), timeout=5):
        return "connected"


def _kill_self(number: int) -> str:
    os.kill(os.getpid(), number)
    time.sleep(60)
    return "alive"


def _count_files() -> str:
    opened = []
    try:
        while len(opened) < 1000:
            opened.append(os.dup(0))
    except OSError:
        return "limited"
    finally:
        for file in opened:
            os.close(file)
    return "unlimited"


def _compute() -> str:
    while True:
        pass


def _grow_file() -> str:
    file = os.memfd_create("large")
    os.ftruncate(file, 1 << 30)  # Python ignores SIGXFSZ
    return "grown"


ACTIONS: dict[str, Callable[[], str]] = {
    "echo": lambda: "yes",
    "read": lambda: Path("/etc/passwd").read_text(encoding="utf-8")[:1],
    "list": lambda: str(len(os.listdir("/"))),  # noqa: PTH208
    "write": lambda: str(Path("/tmp/antiphon-confined").write_text("x", encoding="utf-8")),
    "connect": _connect,
    "environment": lambda: ",".join(sorted(os.environ)),
    "files": _count_files,
    "large file": _grow_file,
    "allocate": lambda: str(len(bytearray(4 << 30))),
    "killed": lambda: _kill_self(signal.SIGKILL),
    "overflow": lambda: _kill_self(signal.SIGSEGV),
    "compute": _compute,
}


def _answer(request: MediaRequest, _payload: bytes) -> MediaResult:
    assert isinstance(request, DescribeRequest)
    name = request.files.model_type
    if name in FORGERIES:
        return FORGERIES[name]()
    if name == "garbage":
        os.write(0, HEAD.pack(3, 0, 0.0) + b"abc")
        time.sleep(60)
    if name == "endless":
        os.write(0, HEAD.pack(0xFFFFFFFF, 0xFFFFFFFF, 0.0))
        time.sleep(60)
    try:
        return ProcessorFacts(error=ACTIONS[name]()), b"", None
    except OSError as error:
        return ProcessorFacts(error=f"refused: {error.strerror}"), b"", None


def _forge(size: int, arrays: tuple[MediaArray, ...], *, file_size: int, sealed: bool = True) -> MediaResult:
    import fcntl

    file = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, file_size)
    if sealed:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    reply = PreparedReply(1, "x", (), 1, 1, "", arrays, size)
    return reply, b"", file


def _array(offset: int = 0, *shape: int) -> MediaArray:
    return MediaArray(name="pixel_values", dtype="uint8", shape=shape, offset=offset)


FORGERIES: dict[str, Callable[[], MediaResult]] = {
    "honest": lambda: _forge(64, (_array(0, 64),), file_size=64),
    "short": lambda: _forge(64, (_array(0, 64),), file_size=32),
    "unsealed": lambda: _forge(64, (_array(0, 64),), file_size=64, sealed=False),
    "outside": lambda: _forge(64, (_array(0, 128),), file_size=64),
    "overlapping": lambda: _forge(192, (_array(0, 128), _array(64, 64)), file_size=192),
    "unaligned": lambda: _forge(64, (_array(1, 8),), file_size=64),
    "negative": lambda: _forge(64, (_array(0, -1, 8),), file_size=64),
}


def _prepare() -> HandleMedia:
    return _answer


if __name__ == "__main__":
    serve_media(_prepare)
