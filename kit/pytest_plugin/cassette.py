"""The cassettes of a test: recorded from a server once, played from then on, both inside pytest's process."""

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

from antiphon.kit.cassette.matching import MatchMode
from antiphon.kit.cassette.player import open_player
from antiphon.kit.cassette.reading import CassetteError, read_cassette
from antiphon.kit.cassette.recorder import open_recorder
from antiphon.kit.proxy.server import WireServerError
from antiphon.kit.proxy.upstream import UpstreamUrlError
from antiphon.kit.pytest_plugin.relay import OpenServer, ServerThread
from antiphon.kit.pytest_plugin.relayed_server import RelayedServer
from antiphon.kit.terminal_text import show_controls, show_line

FOLDER = "__cassettes__"
KEY_VARIABLE = "OPENAI_API_KEY"
_UNSAFE_IN_NAME = re.compile(r"[^\w.-]+")


class CassetteServer(RelayedServer):
    """A server that plays a cassette, or that records one."""

    def __init__(self, upstream_port: int, path: Path, *, is_recording: bool) -> None:
        super().__init__(upstream_port)
        self.path = path
        """The file of the cassette."""
        self.is_recording = is_recording
        """True if replies come from the real server, and are written to the cassette."""


class CassettePool:
    """Opens the cassettes of one test, and closes them at its end.

    `mode` is replay, record (those that are missing) or rewrite (all).
    """

    def __init__(self, mode: str, test_path: Path, test_name: str) -> None:
        self._mode, self._test_path = mode, test_path
        self._test_name = _UNSAFE_IN_NAME.sub("_", test_name).strip("_.")
        self._num_unnamed = 0
        self._misses: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if self._misses:
            lines = ["requests that the cassette does not have:", *map(show_line, self._misses)]
            pytest.fail("\n".join(lines), pytrace=False)

    def open_cassette(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        upstream: str | None = None,
        api_key: str | None = None,
        match: MatchMode = "body",
        speed: float = 0.0,
    ) -> CassetteServer:
        """Returns the server of a cassette: see the fixture `responses_cassette`. Fails the test without a cassette."""
        __tracebackhide__ = True  # in a failure, the test's own line is shown
        file = self._find_file(path)
        if self._mode == "rewrite" or (self._mode == "record" and not file.exists()):
            return self._record(file, upstream, api_key)
        if not file.exists():
            pytest.fail(f"there is no cassette {file}. To record it: pytest --cassettes=record", pytrace=False)
        return self._play(file, match, speed)

    def _find_file(self, path: str | os.PathLike[str] | None) -> Path:
        if path is not None:
            return self._test_path.parent / path
        self._num_unnamed += 1
        number = "" if self._num_unnamed == 1 else f".{self._num_unnamed}"
        return self._test_path.parent / FOLDER / self._test_path.stem / f"{self._test_name}{number}.toml"

    def _play(self, file: Path, match: MatchMode, speed: float) -> CassetteServer:
        __tracebackhide__ = True
        try:
            exchanges = read_cassette(file)
        except CassetteError as error:
            pytest.fail(f"responses_cassette: {show_controls(str(error))}", pytrace=False)
        return self._start(
            lambda: open_player(
                exchanges, match=match, speed=speed, print_line=lambda _: None, report_miss=self._misses.append
            ),
            file,
            is_recording=False,
        )

    def _record(self, file: Path, upstream: str | None, api_key: str | None) -> CassetteServer:
        __tracebackhide__ = True
        if upstream is None:
            pytest.fail(f"{file} cannot be recorded: pass upstream, the base URL of the server", pytrace=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        unfinished.unlink(missing_ok=True)
        self._stack.callback(_keep_recording, unfinished, file)
        key = api_key or os.environ.get(KEY_VARIABLE)
        return self._start(
            lambda: open_recorder(upstream, unfinished, api_key=key, print_line=lambda _: None),
            file,
            is_recording=True,
        )

    def _start(self, open_server: OpenServer, file: Path, *, is_recording: bool) -> CassetteServer:
        __tracebackhide__ = True
        try:
            thread = ServerThread(open_server, "antiphon cassette")
            thread.start()
        except (CassetteError, UpstreamUrlError, WireServerError) as error:
            pytest.fail(f"responses_cassette: {show_controls(str(error))}", pytrace=False)
        self._stack.callback(thread.stop)
        port = urlsplit(thread.url).port or 0
        return self._stack.enter_context(CassetteServer(port, file, is_recording=is_recording))


def _keep_recording(unfinished: Path, file: Path) -> None:
    """Puts a recording in its place if it has an exchange. A file that was there before stays otherwise."""
    if not unfinished.exists():
        return
    if read_cassette(unfinished):
        unfinished.replace(file)
    else:
        unfinished.unlink()
