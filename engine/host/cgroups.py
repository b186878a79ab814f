"""Limits of the Linux control groups that contain this process, by a container or a service manager.

Both versions are read. A limit holds for every group below it, so all levels up to the mount point count. In a
container, the path of the group may be the host's, and only the mount point exists.
"""

from collections.abc import Iterator
from pathlib import Path

NO_LIMIT_BYTES = 1 << 60
"""Memory limits of version 1 from this size on mean that there is none."""


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Returns the CPU time per second that this process may use, in CPUs; None without a limit."""
    quotas = []
    for folder in _group_folders(root, "cpu"):
        limit, *period = _read_words(folder / "cpu.max") or _read_words(folder / "cpu.cfs_quota_us") or ["max"]
        period = period or _read_words(folder / "cpu.cfs_period_us")
        if limit.isdecimal() and period and period[0].isdecimal() and int(period[0]):
            quotas.append(int(limit) / int(period[0]))
    return min(quotas, default=None)


def memory_left(root: Path = Path("/")) -> int | None:
    """Returns the bytes left below the memory limit, at least 0; None without a limit.

    Unused pages of the file cache count as left, because the kernel frees them first: reading weights fills the cache.
    """
    left = []
    for folder in _group_folders(root, "memory"):
        limit = _read_number(folder, "memory.max", "memory.limit_in_bytes")
        used = _read_number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < NO_LIMIT_BYTES:
            left.append(max(limit - max(used - _inactive_file_bytes(folder), 0), 0))
    return min(left, default=None)


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yields the folders of this process's groups with a controller, from the innermost to the mount point."""
    for group in _read_text(root / "proc/self/cgroup").splitlines():
        _, names, path = group.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mounts = (names, controller) if names else ("", "unified")
        for mount in {root / "sys/fs/cgroup" / name: None for name in mounts}:
            folder = mount / path.lstrip("/")
            yield from (level for level in (folder, *folder.parents) if level.is_relative_to(mount) and level.is_dir())


def _inactive_file_bytes(folder: Path) -> int:
    """Returns the bytes of the file cache that the kernel frees first."""
    values = dict(line.split(" ", 1) for line in _read_text(folder / "memory.stat").splitlines() if " " in line)
    text = values.get("total_inactive_file", values.get("inactive_file", ""))
    return int(text) if text.isdecimal() else 0


def _read_number(folder: Path, *names: str) -> int | None:
    """Returns the number in the first of these files that exists; None if it holds no number."""
    words = next((words for name in names if (words := _read_words(folder / name))), [""])
    return int(words[0]) if words[0].isdecimal() else None


def _read_words(path: Path) -> list[str]:
    return _read_text(path).split()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
