"""The wheel of this tree, and environments in which it is installed."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.install_lock import find_run_folder, hold_lock
from tests.syntax import PACKAGES, ROOT

BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE", *PACKAGES)
"""Files and folders that a build reads."""


def build_wheel(factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel, once for all processes of a test run."""
    folder = find_run_folder(factory) / "built-wheel"
    with hold_lock(folder):
        built = list(folder.glob("wheel/*.whl"))
        return built[0] if built else build_files(folder)[1]


def build_files(folder: Path) -> tuple[Path, Path]:
    """Returns the sdist, and the wheel built from it unpacked: a file missing from the sdist is missing from the wheel."""
    source = folder / "source"
    source.mkdir()
    for name in BUILD_FILES:
        (source / name).symlink_to(ROOT / name)
    (sdist,) = _run_backend("sdist", source, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("antiphon-*")
    (wheel,) = _run_backend("wheel", unpacked, folder / "wheel")
    return sdist, wheel


def _run_backend(kind: str, source: Path, out: Path) -> list[Path]:
    """Builds with the installed setuptools, the backend that pip uses, without network access."""
    out.mkdir()
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    result = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return list(out.iterdir())


def install_wheel(wheel: Path, folder: Path, *dependencies: str | Path) -> Path:
    """Returns the interpreter of a new environment with the wheel, and with the packages in the folders `dependencies`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = ["pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", *install], cwd=folder, env=clean_environment(), check=True)
    site_packages = find_site_packages(folder)
    # Folders added by a .pth file are not searched for further .pth files, so the editable install stays invisible.
    lines = "".join(f"{dependency}\n" for dependency in dependencies)
    (site_packages / "dependencies.pth").write_text(lines, encoding="utf-8")
    command = [str(python), "-c", "import antiphon.app; print(antiphon.app.__file__)"]
    result = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=True)
    assert Path(result.stdout.strip()).is_relative_to(site_packages)
    return python


def find_site_packages(environment: Path) -> Path:
    """Returns the folder of an environment's packages."""
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def clean_environment() -> dict[str, str]:
    """Returns the environment variables without the path to the repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
