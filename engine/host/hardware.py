"""CPU cores and memory that this process may use, read from the operating system."""

import math
import os
from pathlib import Path

import torch

from antiphon.engine.host.cgroups import cpu_quota, memory_left


def physical_cores() -> int:
    """Returns the number of physical cores that CPU affinity and the container's quota allow, at least one."""
    cores = {_core_id(cpu) for cpu in _usable_cpus()}
    quota = cpu_quota()
    return max(1, len(cores) if quota is None else min(len(cores), math.ceil(quota)))


def _usable_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core_id(cpu: int) -> tuple[str, str]:
    """Returns an id that the hardware threads of one core share. A CPU without topology data counts as a core."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        package = (topology / "physical_package_id").read_text(encoding="ascii").strip()
        return package, (topology / "core_id").read_text(encoding="ascii").strip()
    except OSError:
        return "", str(cpu)


def cpu_features() -> str:
    """Returns the CPU's instruction sets that matter to the kernels, for the startup log."""
    checks = {
        "AMX": "_is_amx_tile_supported",
        "VNNI": "_is_vnni_supported",
        "bf16": "_is_avx512_bf16_supported",
    }
    features = [feature for feature, check in checks.items() if getattr(torch.cpu, check, bool)()]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *features])


def free_memory(device: str) -> int | None:
    """Returns the bytes of memory now available on the device; None if unknown."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [_meminfo(), memory_left()]
    return min((limit for limit in limits if limit is not None), default=None)


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
