"""What this process may use of the machine, read from where the system says it."""

import math
import os
from pathlib import Path

import torch


def physical_cores() -> int:
    """Physical cores that this process may run on, by its affinity and its container's share, at least one."""
    cores = {_core_id(number) for number in _usable_cpus()}
    quota = _cgroup_cpu_quota()
    return max(1, len(cores) if quota is None else min(len(cores), math.ceil(quota)))


def _usable_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core_id(number: int) -> tuple[str, str]:
    """What two hardware threads of one core have in common; a CPU about which nobody says anything is one."""
    topology = Path(f"/sys/devices/system/cpu/cpu{number}/topology")
    try:
        package = (topology / "physical_package_id").read_text(encoding="ascii").strip()
        return package, (topology / "core_id").read_text(encoding="ascii").strip()
    except OSError:
        return "", str(number)


def _cgroup_cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """How many CPUs' time the container may use; None without a limit."""
    try:
        share, period = path.read_text(encoding="ascii").split()
        return None if share == "max" else int(share) / int(period)
    except (OSError, ValueError):
        return None


def cpu_features() -> str:
    """What the CPU can do that matters here, in a few words."""
    known = {
        "AMX": "_is_amx_tile_supported",
        "VNNI": "_is_vnni_supported",
        "bf16": "_is_avx512_bf16_supported",
    }
    has = [word for word, name in known.items() if getattr(torch.cpu, name, bool)()]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *has])


def free_memory(device: str) -> int | None:
    """Bytes that can be had now on the device; None where nobody says."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    amounts = [_meminfo(), _cgroup_memory()]
    return min((amount for amount in amounts if amount is not None), default=None)


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_memory() -> int | None:
    """What the container's limit leaves; None without one."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if limit == "max" else max(int(limit) - int(used), 0)
