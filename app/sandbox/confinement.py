"""Limits of a process that reads what clients send: memory, files, network, privileges. Linux has all of them.

Each limit that the system does not offer is named, so that the server can tell the operator once. A process without
any of them still is a process of its own, which holds no secret and is killed past its limit of CPU time.
"""

import contextlib
import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from antiphon.app.sandbox.messages import MEMORY_LIMIT, WorkerLimits

MAX_OPEN_FILES = 64
CODE_PACKAGES = ("app", "engine", "events", "harmony", "state")
"""Packages beside which a checkout has other files."""
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446
"""Numbers of landlock's system calls, equal on all architectures."""
_RULE_PATH_BENEATH = 1
_VERSION_FLAG = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Version of landlock → number of rights about files that it knows. Each is a bit, beginning with the lowest."""


def confine_process(limits: WorkerLimits) -> tuple[str, ...]:
    """Sets all limits that this system offers. Returns the names of the others. Call it before any thread starts."""
    missing = []
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower_limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _lower_limit(resource.RLIMIT_FSIZE, limits.max_payload_bytes)
    if not limit_memory(limits.memory_bytes):
        missing.append(MEMORY_LIMIT)
    libc = _load_libc()
    if libc is None or not _leave_network(libc):
        missing.append("an own network namespace")
    if libc is None or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or not _close_files(libc):
        missing.append("landlock")
    return tuple(missing)


def limit_memory(size: int) -> bool:
    """Limits the address space of this process, to `size` bytes or to a smaller limit that it has already.

    Returns False where the system does not do so: macOS refuses the limit, or accepts it without an effect.
    """
    try:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ValueError, OSError):
        return False
    return sys.platform == "linux"


def _lower_limit(kind: int, limit: int) -> None:
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit, limit) if hard == resource.RLIM_INFINITY else (min(limit, hard),) * 2)


def _load_libc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


def _leave_network(libc: ctypes.CDLL) -> bool:
    """Moves this process to a network namespace without interfaces, as root or in a user namespace of its own."""
    return any(libc.unshare(flags) == 0 for flags in (_CLONE_NEWNET, _CLONE_NEWUSER | _CLONE_NEWNET))


def _close_files(libc: ctypes.CDLL) -> bool:
    """Leaves this process read access to Python's own files, and no other: libraries import modules when needed."""
    version = libc.syscall(_SYS_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if version < 1:
        return False
    handled = (1 << _FILE_RIGHTS_BY_VERSION.get(version, 16)) - 1
    attributes = struct.pack("=QQ", handled, 0b11 if version >= 4 else 0)  # the second word: bind and connect TCP
    size = len(attributes) if version >= 4 else 8
    ruleset = libc.syscall(_SYS_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        for path in _find_code_folders():
            _allow_reading(libc, ruleset, path)
        return libc.syscall(_SYS_RESTRICT_SELF, ruleset, 0) == 0  # type: ignore[no-any-return]
    finally:
        os.close(ruleset)


def _find_code_folders() -> Iterable[Path]:
    """Returns the folders from which this interpreter imports modules and loads libraries."""
    packages = Path(__file__).resolve().parents[2]  # they may be linked from elsewhere
    ours = [packages / name for name in CODE_PACKAGES]
    system = [Path(name) for name in ("/lib", "/lib64", "/usr/lib", "/usr/lib64")]
    prefixes = [Path(prefix) / "lib" for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}]
    named = [Path(entry) for entry in sys.path if entry]
    return {path.resolve() for path in [*ours, *system, *prefixes, *named] if path.is_dir()}


def _allow_reading(libc: ctypes.CDLL, ruleset: int, path: Path) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", _READ_FILE | _READ_DIR, folder)
        libc.syscall(_SYS_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(folder)
