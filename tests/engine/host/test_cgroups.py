"""Limits of control groups of both versions, at every level above the process."""

from pathlib import Path

import pytest

from antiphon.engine.host.cgroups import cpu_quota, memory_left

GIB = 2**30


def make_root(folder: Path, membership: str, files: dict[str, str]) -> Path:
    """Writes `/proc/self/cgroup` and files below `/sys/fs/cgroup` into a folder that stands for the root."""
    for name, text in {
        "proc/self/cgroup": membership,
        **{f"sys/fs/cgroup/{path}": files[path] for path in files},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2.0),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "300000 100000"}, 3.0),
        ("0::/of/the/host\n", {"cpu.max": "50000 100000"}, 0.5),
        (
            "4:cpu,cpuacct:/x\n0::/\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        ("4:cpuacct,cpu:/\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2.0),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n", {"unified/cpu.max": "100000 100000"}, 1.0),
        ("", {}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
    ],
)
def test_cpu_quota_is_the_smallest_of_all_levels(
    tmp_path: Path, membership: str, files: dict[str, str], quota: float | None
) -> None:
    assert cpu_quota(make_root(tmp_path, membership, files)) == quota


@pytest.mark.parametrize(
    ("membership", "files", "left"),
    [
        ("0::/\n", {"memory.max": str(4 * GIB), "memory.current": str(GIB)}, 3 * GIB),
        ("0::/\n", {"memory.max": "max", "memory.current": str(GIB)}, None),
        ("0::/a\n", {"a/memory.max": str(2 * GIB), "a/memory.current": str(3 * GIB)}, 0),
        (
            "0::/\n",
            {
                "memory.max": str(4 * GIB),
                "memory.current": str(3 * GIB),
                "memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            2 * GIB,
        ),
        (
            "5:memory:/x\n",
            {
                "memory/x/memory.limit_in_bytes": str(4 * GIB),
                "memory/x/memory.usage_in_bytes": str(2 * GIB),
                "memory/x/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
            },
            3 * GIB,
        ),
        (
            "5:memory:/\n",
            {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "1"},
            None,
        ),
        ("", {}, None),
    ],
)
def test_memory_left_excludes_the_file_cache(
    tmp_path: Path, membership: str, files: dict[str, str], left: int | None
) -> None:
    assert memory_left(make_root(tmp_path, membership, files)) == left
