"""Installs SDKs for Node with npm, and a Node where the system has none or an older one. Runs scripts."""

import json
import re
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.install_lock import hold_lock
from tests.progress import HANG_TIMEOUT_S
from tests.syntax import ROOT

INSTALL_FOLDER = ROOT / "build" / "node"
NODE_VERSION = "22.23.3"
SERVERS_FOLDER = ROOT / "build" / "node-servers"
"""Apart from the SDKs: each of both may need another version of a package."""
LOCK_FILE = Path(__file__).with_name("programs") / "node.lock"
SERVERS_LOCK_FILE = LOCK_FILE.with_name("node_servers.lock")
WEB_TOOLS_FOLDER = ROOT / "build" / "web-tools"
WEB_TOOLS_LOCK_FILE = LOCK_FILE.with_name("node_web.lock")
MIN_NODE_MAJOR = 22
INSTALL_TIMEOUT_S = 180.0
SCRIPT_TIMEOUT_S = 250.0


def install_node_sdk() -> Path:
    """Returns a Node program that can import the SDKs from `INSTALL_FOLDER`. Skips the test if there is none."""
    with hold_lock(INSTALL_FOLDER):
        missing = _missing_packages(LOCK_FILE, INSTALL_FOLDER)
        missing += [] if _major_version(_find_node()) >= MIN_NODE_MAJOR else [f"node@{NODE_VERSION}"]
        _install_packages(missing, INSTALL_FOLDER)
        program = _find_node()
        if _major_version(program) < MIN_NODE_MAJOR or program is None:
            pytest.skip(f"the SDKs need Node {MIN_NODE_MAJOR}, and npm did not install it")
        return Path(program)


def install_node_servers() -> Path:
    """Returns the folder of tool servers that Node runs. Skips the test where npm does not install them."""
    with hold_lock(SERVERS_FOLDER):
        _install_packages(_missing_packages(SERVERS_LOCK_FILE, SERVERS_FOLDER), SERVERS_FOLDER)
    return SERVERS_FOLDER / "node_modules"


def install_web_tools() -> Path:
    """Returns the folder of the packages that check the web page. Skips the test where npm does not install them."""
    with hold_lock(WEB_TOOLS_FOLDER):
        _install_packages(_missing_packages(WEB_TOOLS_LOCK_FILE, WEB_TOOLS_FOLDER), WEB_TOOLS_FOLDER)
    return WEB_TOOLS_FOLDER / "node_modules"


def run_node_script(node: Path, name: str, *args: str | Path) -> dict[str, Any]:
    """Runs a script of this folder and returns the JSON object that it prints.

    Node imports the SDK from the folder of the script, so the script is copied there. The copy has a unique name,
    because test processes run the same script at the same time.
    """
    script = INSTALL_FOLDER / f"{uuid.uuid4().hex}-{name}"
    shutil.copy(Path(__file__).with_name(name), script)
    try:
        done = subprocess.run(
            [node, script, *args], capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S, check=False
        )
    finally:
        script.unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def copy_node_programs() -> Path:
    """Copies the programs to a new folder, from which Node finds the SDKs. Returns it; the caller removes it."""
    folder = INSTALL_FOLDER / uuid.uuid4().hex
    folder.mkdir()
    for program in LOCK_FILE.parent.glob("*.mjs"):
        shutil.copy(program, folder)
    return folder


def _missing_packages(lock: Path, folder: Path) -> list[str]:
    lines = lock.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#") and not _is_installed(line, folder)]


def _is_installed(package: str, folder: Path) -> bool:
    name, _, version = package.rpartition("@")
    return _package_version(folder / "node_modules" / name) == version


def _find_node() -> str | None:
    """Returns the system's Node if it is new enough, otherwise the path at which npm installs one."""
    program = shutil.which("node")
    if _major_version(program) >= MIN_NODE_MAJOR:
        return program
    return str(INSTALL_FOLDER / "node_modules" / ".bin" / "node")


def _install_packages(packages: list[str], folder: Path) -> None:
    if not packages:
        return
    if not shutil.which("npm"):
        pytest.skip("npm, which installs the SDKs, is not installed")
    args = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *packages]
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {packages[0]} and others within {INSTALL_TIMEOUT_S:g} s")
    if done.returncode:
        reason = (done.stderr.strip() or "no output").splitlines()[-1]
        pytest.skip(f"npm did not install {packages[0]} and others: {reason}")


def _package_version(package: Path) -> str | None:
    try:
        version: str = json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError):
        return None
    return version


def _major_version(program: str | None) -> int:
    if program is None:
        return 0
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False
        )
    except OSError:
        return 0
    match = re.match(r"v(\d+)\.", done.stdout)
    return int(match[1]) if match else 0
