"""The real Codex CLI: installed once, run on a server of ours in a home of its own."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.app.observability.startup import CODEX_CONFIG, CODEX_ENV_KEY
from tests.install_lock import alone
from tests.serving import RunningServer
from tests.syntax import ROOT

VERSION = "0.169.0"
KEY = "sk-codex-test"
FOLDER = ROOT / ".codex"
"""Git ignores it; it survives from run to run."""
PROGRAM = FOLDER / "node_modules" / ".bin" / "codex"
INSTALL_WITHIN = 100.0
RUN_WITHIN = 40.0
QUIET = """
check_for_update_on_startup = false
analytics.enabled = false
feedback.enabled = false
history.persistence = "none"
otel.metrics_exporter = "none"
"""
"""Nothing but the server is to be talked to."""


class Missing(Exception):  # noqa: N818 - no error of ours
    """Codex cannot be had here; the message says why."""


class Ran(Struct):
    """How a run ended, and the events that it told."""

    code: int
    events: list[dict[str, Any]]
    told: str
    """What it wrote to standard error."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one type."""
        return [event for event in self.events if event["type"] == kind]

    def items(self, kind: str) -> list[dict[str, Any]]:
        """The completed items of one type."""
        return [event["item"] for event in self.of("item.completed") if event["item"]["type"] == kind]

    @property
    def final(self) -> str:
        """What the user reads last."""
        return str(self.items("agent_message")[-1]["text"])


def install() -> Path:
    """The program, fetched if it is not there yet. Raises `Missing`."""
    with alone(FOLDER):
        return _ready()


def _ready() -> Path:
    if _version() == VERSION:
        return PROGRAM
    if not shutil.which("npm"):
        raise Missing("npm is not installed, and it is npm that brings Codex")
    words = ["npm", "install", "--prefix", str(FOLDER), "--no-audit", "--no-fund", f"@openai/codex@{VERSION}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_WITHIN, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"npm did not bring @openai/codex within {INSTALL_WITHIN:g} s") from None
    found = _version()
    if found != VERSION:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise Missing(f"npm did not bring @openai/codex {VERSION} (it brought {found}; it said: {said})")
    return PROGRAM


def _version() -> str | None:
    try:
        done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().removeprefix("codex-cli ") or None


class Codex(Struct):
    """Codex in a home of its own, with a folder to work in. `config` are the lines that `antiphon serve` prints."""

    program: Path
    home: Path

    @property
    def work(self) -> Path:
        return self.home / "work"

    def exec(
        self,
        served: RunningServer,
        prompt: str,
        *options: str,
        resume: bool = False,
        flags: tuple[str, ...] = (),
        within: float = RUN_WITHIN,
    ) -> Ran:
        """`codex exec --json`, to its end; `resume` goes on with the latest session.

        `options` are `key=value` as in `config.toml`, `flags` are words for the command line as they are.
        """
        self.work.mkdir(parents=True, exist_ok=True)
        self._configure(served)
        words = [str(self.program), "exec", "--json", "--strict-config", "--skip-git-repo-check"]
        words.append("--dangerously-bypass-approvals-and-sandbox")
        for option in options:
            words += ["-c", option]
        words += [*flags, "-C", str(self.work), *(["resume", "--last"] if resume else []), prompt]
        oss = {"CODEX_OSS_BASE_URL": served.url} if "--oss" in flags else {}
        return _run(words, self._environment() | oss, within)

    def _configure(self, served: RunningServer) -> None:
        """What a user pastes, and nothing that talks to anyone else."""
        model = served.context.models.served[0].names[0]
        pasted = CODEX_CONFIG.format(model=model, url=served.url) + (
            CODEX_ENV_KEY if served.context.settings.api_key_digests else ""
        )
        (self.home / "config.toml").write_text(f"{QUIET}\n{pasted}\n", encoding="utf-8")

    def _environment(self) -> dict[str, str]:
        home = str(self.home)
        return {"PATH": os.environ["PATH"], "HOME": home, "CODEX_HOME": home, "ANTIPHON_API_KEY": KEY}


def _run(words: list[str], environment: dict[str, str], within: float) -> Ran:
    """Run to the end, or to ours: the program starts others, so the whole group goes."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, text=True, start_new_session=True, **pipes) as process:
        try:
            said, told = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, told = process.communicate()
            raise AssertionError(f"codex did not end within {within:g} s:\n{said[-3000:]}\n{told[-1000:]}") from None
    return Ran(code=process.returncode, events=[json.loads(line) for line in said.splitlines()], told=told)
