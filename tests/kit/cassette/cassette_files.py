"""Recorders and players for the tests of cassettes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphon.kit.cassette.player import open_player
from antiphon.kit.cassette.reading import parse_cassette, read_cassette
from antiphon.kit.cassette.recorder import open_recorder
from tests.kit.proxy.wire_servers import run_in_thread


@contextmanager
def run_recorder(upstream_url: str, path: Path, **options: Any) -> Iterator[str]:
    """Records to a file. Yields the base URL. The file is complete after the block."""
    with run_in_thread(lambda: open_recorder(upstream_url, path, print_line=lambda _: None, **options)) as url:
        yield url


@contextmanager
def run_player(cassette: Path | str, *, speed: float = 0, **options: Any) -> Iterator[str]:
    """Serves a file, or the text of a cassette. Yields the base URL."""
    exchanges = read_cassette(cassette) if isinstance(cassette, Path) else parse_cassette(cassette)
    options.setdefault("print_line", lambda _: None)
    with run_in_thread(lambda: open_player(exchanges, speed=speed, **options)) as url:
        yield url
