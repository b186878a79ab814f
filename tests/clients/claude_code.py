"""Installs Claude Code with npm, and runs its print mode against a test server with its own home folder."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.install_lock import hold_lock
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer
from tests.syntax import ROOT

CLAUDE_CODE_VERSION = "2.1.330"
INSTALL_FOLDER = ROOT / "build" / "claude-code"
PROGRAM = INSTALL_FOLDER / "node_modules" / ".bin" / "claude"
INSTALL_TIMEOUT_S = 180.0
RUN_TIMEOUT_S = 250.0


def install_claude_code() -> Path:
    """Returns the program. Skips the test where npm cannot install it."""
    with hold_lock(INSTALL_FOLDER):
        if _installed_version() == CLAUDE_CODE_VERSION:
            return PROGRAM
        if not shutil.which("npm"):
            pytest.skip("npm, which installs Claude Code, is not installed")
        package = f"@anthropic-ai/claude-code@{CLAUDE_CODE_VERSION}"
        args = ["npm", "install", "--prefix", str(INSTALL_FOLDER), "--no-audit", "--no-fund", package]
        try:
            subprocess.run(args, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not install {package} within {INSTALL_TIMEOUT_S:g} s")
        if _installed_version() != CLAUDE_CODE_VERSION:
            pytest.skip(f"npm did not install {package}")
        return PROGRAM


def run_claude_code(
    program: Path, server: RunningServer, prompt: str, home: Path, key: str, tools: str = "Bash"
) -> dict[str, Any]:
    """Runs one prompt in print mode to its end, in `home/work`, and returns the JSON result."""
    (home / "work").mkdir(parents=True, exist_ok=True)
    model = server.context.models.served[0].names[0]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": server.root,
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    args = [program, "-p", prompt, "--output-format", "json", "--allowedTools", tools, "--max-turns", "4"]
    done = subprocess.run(
        args,
        env=environment,
        cwd=home / "work",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-1000:]}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _installed_version() -> str | None:
    try:
        done = subprocess.run(
            [PROGRAM, "--version"], capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.partition(" ")[0] or None
