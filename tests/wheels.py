"""Lists for which platforms the pinned dependencies have wheels: `python -m tests.wheels > docs/reference/wheels.md`.

It asks pip, which asks the configured index. A dependency of pure Python fits every platform, so only the others are
asked about. Run it after a change of `requirements.lock`.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
PYTHON_VERSION = "3.11"
_GLIBC_VERSIONS = (17, 24, 26, 27, 28, 31, 34, 35)
PLATFORMS = {
    "macOS arm64": ("macosx_14_0_arm64",),
    "Linux aarch64": (
        "manylinux2014_aarch64",
        "linux_aarch64",
        *(f"manylinux_2_{minor}_aarch64" for minor in _GLIBC_VERSIONS),
    ),
}
"""Platforms by their name in the table, with the tags that pip knows. Older versions of macOS are included by pip."""
HEAD = f"""# Wheels of the pinned dependencies

Written by `python -m tests.wheels`, for Python {PYTHON_VERSION}. It lists every dependency of [requirements.lock](../../requirements.lock)
that contains compiled code; all others are pure Python and fit every platform. macOS means version 14 or later.

"""


def read_lock() -> dict[str, str]:
    """Returns the pinned versions by name."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def list_compiled() -> dict[str, str]:
    """Returns the pinned versions of the dependencies whose installed wheels contain compiled code."""
    return {name: version for name, version in read_lock().items() if not _is_pure(name)}


def _is_pure(name: str) -> bool:
    try:
        installed: Distribution = distribution(name)
    except PackageNotFoundError:
        return False
    return any(
        line.startswith("Tag:") and line.endswith("-any") for line in (installed.read_text("WHEEL") or "").splitlines()
    )


def has_wheel(name: str, version: str, platforms: tuple[str, ...]) -> bool:
    """Tells whether the index has a wheel of this version that pip would install on a platform."""
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--only-binary=:all:"]
    command += [f"--python-version={PYTHON_VERSION}", *(f"--platform={platform}" for platform in platforms)]
    reply = subprocess.run(command, capture_output=True, text=True, check=False)
    available = next((line for line in reply.stdout.splitlines() if line.startswith("Available versions:")), "")
    return version in available.removeprefix("Available versions:").replace(",", " ").split()


def write_table() -> str:
    """Returns the page."""
    compiled = sorted(list_compiled().items(), key=lambda item: item[0].lower())
    with ThreadPoolExecutor(3) as pool:
        columns = [
            list(pool.map(lambda item, tags=tags: has_wheel(*item, tags), compiled))  # type: ignore[misc]
            for tags in PLATFORMS.values()
        ]
    rows = [f"| dependency | version | {' | '.join(PLATFORMS)} |", "|---|---|" + "---|" * len(PLATFORMS)]
    for (name, version), *found in zip(compiled, *columns, strict=True):
        rows.append(f"| {name} | {version} | {' | '.join('yes' if each else '**none**' for each in found)} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(write_table(), end="")
