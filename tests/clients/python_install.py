"""Installs Python clients that conflict with this project's packages into environments of their own. Runs programs."""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.install_lock import hold_lock
from tests.syntax import ROOT

PROGRAMS_FOLDER = Path(__file__).with_name("programs")
INSTALL_FOLDER = ROOT / "build" / "python-clients"
INSTALL_TIMEOUT_S = 240.0
PROGRAM_TIMEOUT_S = 400.0
RUN_IN_TURN = """\
import contextlib, io, json, os, sys

printed = []
for source, argument, folder in json.loads(sys.argv[1]):
    sys.argv = ["program", argument]
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(source, "program", "exec"), {"__name__": "__main__"})
    printed.append(output.getvalue())
json.dump(printed, sys.stdout)
"""
"""Runs programs one after the other. The libraries of agents take seconds to import, a program a fraction of one."""


def install_python_clients(name: str) -> Path:
    """Returns the interpreter of an environment with the packages of `programs/NAME.lock`. Skips the test without one."""
    lock = PROGRAMS_FOLDER / f"{name}.lock"
    environment = INSTALL_FOLDER / name
    contents = f"{sys.version}\n{lock.read_text(encoding='utf-8')}"
    installed = environment / "installed.txt"
    with hold_lock(INSTALL_FOLDER / f"{name}-lock"):
        if not installed.exists() or installed.read_text(encoding="utf-8") != contents:
            _create_environment(environment, lock)
            installed.write_text(contents, encoding="utf-8")
    return _interpreter(environment)


def run_program(command: list[str | Path], home: Path, **variables: str) -> Any:
    """Runs a client program with an environment and a home folder of its own. Returns the JSON value that it prints.

    The client sees none of the caller's variables, since proxies, keys and `PYTHONPATH` change what clients do.
    """
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), **variables}
    done = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    return json.loads(done.stdout)


def run_in_turn(python: Path, programs: list[tuple[str, str, Path]], home: Path) -> list[str]:
    """Runs programs in one interpreter: texts, each with its argument and its folder. Returns what each prints."""
    task = json.dumps([(source, argument, str(folder)) for source, argument, folder in programs])
    printed: list[str] = run_program([python, "-c", RUN_IN_TURN, task], home)
    return printed


def _create_environment(environment: Path, lock: Path) -> None:
    """Creates the environment without a pip of its own: this project's pip installs into it."""
    shutil.rmtree(environment, ignore_errors=True)
    venv.create(environment, with_pip=False, symlinks=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(_interpreter(environment)),
        "--disable-pip-version-check",
        "--retries",
        "1",
    ]
    # The lock holds everything, so nothing is resolved. Modules are compiled when they are imported, which few are.
    options = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--requirement", str(lock)]
    try:
        done = subprocess.run(
            [*pip, "install", "--quiet", *options],
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip did not install {lock.name} within {INSTALL_TIMEOUT_S:g} s")
    if done.returncode:
        reason = (done.stderr.strip() or "no output").splitlines()[-1]
        pytest.skip(f"pip did not install {lock.name}: {reason}")


def _interpreter(environment: Path) -> Path:
    return environment / "bin" / "python"
