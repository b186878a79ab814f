"""Installs the Codex CLI with npm, and runs it against a test server with its own home folder."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.app.observability.startup import CODEX_CONFIG, CODEX_ENV_KEY
from tests.install_lock import hold_lock
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer
from tests.syntax import ROOT

CODEX_VERSION = "0.169.0"
API_KEY = "sk-codex-test"
INSTALL_FOLDER = ROOT / ".codex"
"""Ignored by git and kept between test runs."""
CODEX_PROGRAM = INSTALL_FOLDER / "node_modules" / ".bin" / "codex"
INSTALL_TIMEOUT_S = 100.0
RUN_TIMEOUT_S = 200.0
OFFLINE_CONFIG = """
check_for_update_on_startup = false
analytics.enabled = false
feedback.enabled = false
history.persistence = "none"
otel.metrics_exporter = "none"
"""
"""Settings that keep Codex from connecting to any other server."""


class CodexUnavailableError(Exception):
    """Raised when Codex cannot be installed. The message gives the reason."""


class CodexRun(Struct):
    """Exit code and output of one `codex exec`."""

    exit_code: int
    events: list[dict[str, Any]]
    stderr: str

    def events_of_type(self, kind: str) -> list[dict[str, Any]]:
        """Returns the events of one type."""
        return [event for event in self.events if event["type"] == kind]

    def items_of_type(self, kind: str) -> list[dict[str, Any]]:
        """Returns the completed items of one type."""
        return [event["item"] for event in self.events_of_type("item.completed") if event["item"]["type"] == kind]

    @property
    def final_message(self) -> str:
        """Text of the last agent message."""
        return str(self.items_of_type("agent_message")[-1]["text"])


def install_codex() -> Path:
    """Installs Codex if it is missing, and returns the program. Raises `CodexUnavailableError`."""
    with hold_lock(INSTALL_FOLDER):
        return _ensure_installed()


def _ensure_installed() -> Path:
    if _installed_version() == CODEX_VERSION:
        return CODEX_PROGRAM
    if not shutil.which("npm"):
        raise CodexUnavailableError("npm, which installs Codex, is not installed")
    args = [
        "npm",
        "install",
        "--prefix",
        str(INSTALL_FOLDER),
        "--no-audit",
        "--no-fund",
        f"@openai/codex@{CODEX_VERSION}",
    ]
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CodexUnavailableError(f"npm did not install @openai/codex within {INSTALL_TIMEOUT_S:g} s") from None
    installed = _installed_version()
    if installed != CODEX_VERSION:
        reason = (done.stderr.strip() or "no output").splitlines()[-1]
        raise CodexUnavailableError(
            f"npm did not install @openai/codex {CODEX_VERSION} (found {installed}; npm: {reason})"
        )
    return CODEX_PROGRAM


def _installed_version() -> str | None:
    try:
        done = subprocess.run(
            [CODEX_PROGRAM, "--version"], capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().removeprefix("codex-cli ") or None


class CodexCli(Struct):
    """Codex with its own home and work folders. Its config has the lines that `antiphon serve` prints."""

    program: Path
    home: Path

    @property
    def work_folder(self) -> Path:
        return self.home / "work"

    def exec(
        self,
        server: RunningServer,
        prompt: str,
        *options: str,
        resume: bool = False,
        flags: tuple[str, ...] = (),
        timeout_s: float = RUN_TIMEOUT_S,
    ) -> CodexRun:
        """Runs `codex exec --json` to its end. `resume` continues the latest session.

        `options` are `key=value` pairs as in `config.toml`; `flags` are command line arguments.
        """
        self.work_folder.mkdir(parents=True, exist_ok=True)
        self.write_config(server)
        args = [str(self.program), "exec", "--json", "--strict-config", "--skip-git-repo-check"]
        args.append("--dangerously-bypass-approvals-and-sandbox")
        for option in options:
            args += ["-c", option]
        args += [*flags, "-C", str(self.work_folder), *(["resume", "--last"] if resume else []), prompt]
        oss = {"CODEX_OSS_BASE_URL": server.url} if "--oss" in flags else {}
        return _run_process(args, self.make_environment() | oss, timeout_s)

    def write_config(self, server: RunningServer) -> None:
        """Writes the config that a user would paste, and the settings that keep Codex offline."""
        model = server.context.models.served[0].names[0]
        config = CODEX_CONFIG.format(model=model, url=server.url) + (
            CODEX_ENV_KEY if server.context.settings.requires_key else ""
        )
        (self.home / "config.toml").write_text(f"{OFFLINE_CONFIG}\n{config}\n", encoding="utf-8")

    def make_environment(self) -> dict[str, str]:
        """Returns the environment of a Codex process: nothing of the test's own but `PATH`."""
        home = str(self.home)
        return {"PATH": os.environ["PATH"], "HOME": home, "CODEX_HOME": home, "ANTIPHON_API_KEY": API_KEY}


def _run_process(args: list[str], environment: dict[str, str], timeout_s: float) -> CodexRun:
    """Runs a command to its end. After the timeout, kills its process group, since Codex starts child processes."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(args, env=environment, text=True, start_new_session=True, **pipes) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            raise AssertionError(
                f"codex did not end within {timeout_s:g} s:\n{stdout[-3000:]}\n{stderr[-1000:]}"
            ) from None
    return CodexRun(
        exit_code=process.returncode, events=[json.loads(line) for line in stdout.splitlines()], stderr=stderr
    )
