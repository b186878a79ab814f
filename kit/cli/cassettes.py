"""`antiphon record` and `antiphon replay`: the recorder and the player of cassettes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

HOST_OPTION = click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
PORT_OPTION = click.option(
    "--port", default=8001, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: any free port."
)


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Raises `click.ClickException` for what a user can mend."""
    from antiphon.kit.cassette.reading import CassetteError  # noqa: PLC0415  the command line starts fast
    from antiphon.kit.proxy.server import WireServerError  # noqa: PLC0415
    from antiphon.kit.proxy.upstream import UpstreamUrlError  # noqa: PLC0415

    try:
        yield
    except (CassetteError, WireServerError, UpstreamUrlError) as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.argument("upstream")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Cassette to write: TOML text, without secrets.",
)
@click.option("--append", is_flag=True, help="Add to a cassette that exists.")
@HOST_OPTION
@PORT_OPTION
@click.option(
    "--api-key",
    envvar="ANTIPHON_RECORD_API_KEY",
    help="API key to send to UPSTREAM in place of the client's. Other users of the machine can see it in the process "
    "list: use the variable ANTIPHON_RECORD_API_KEY.",
)
def record(upstream: str, out: Path, append: bool, host: str, port: int, api_key: str | None) -> None:
    """Record the traffic with UPSTREAM, the base URL of a server, until Ctrl-C.

    Clients use the printed base URL in place of UPSTREAM. WebSockets are refused, so that clients use POST. The page
    docs/cassettes.md describes the file.
    """
    from antiphon.kit.cassette.recorder import open_recorder  # noqa: PLC0415  the command line starts fast
    from antiphon.kit.proxy.proxy import run_until_signal  # noqa: PLC0415

    with _explain_errors():
        server = open_recorder(upstream, out, host, port, api_key=api_key, append=append)
        run_until_signal(server, f"recording {upstream} to {out}")


class SpeedType(click.ParamType[float]):
    """`original`, or a factor; 0: without waiting."""

    name = "speed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the factor by which time passes."""
        if value == "original":
            return 1.0
        try:
            speed = float(value)
        except ValueError:
            speed = -1.0
        if not 0 <= speed < float("inf"):
            self.fail(f"{value!r} is neither 'original' nor a number of at least 0", param, ctx)
        return speed


@click.command()
@click.argument("cassette", type=click.Path(path_type=Path))
@HOST_OPTION
@PORT_OPTION
@click.option(
    "--speed",
    type=SpeedType(),
    metavar="original|FACTOR|0",
    default="original",
    show_default=True,
    help="Timing of the events: as recorded, so many times as fast, or without waiting.",
)
@click.option(
    "--match",
    type=click.Choice(["body", "exact", "order"]),
    default="body",
    show_default=True,
    help="Compare bodies without ids, dates and the like; or whole bodies; or take the next exchange of the path.",
)
@click.option("--fallback", metavar="URL", help="Base URL of a server that gets unknown requests. Default: answer 404.")
def replay(cassette: Path, host: str, port: int, speed: float, match: Any, fallback: str | None) -> None:
    """Serve the exchanges of CASSETTE, a file that `antiphon record` has written or a person, until Ctrl-C.

    A request gets the reply to the recorded request with the same method, path and body. The page docs/cassettes.md
    describes the file and the comparison.
    """
    from antiphon.kit.cassette.player import open_player  # noqa: PLC0415  the command line starts fast
    from antiphon.kit.cassette.reading import read_cassette  # noqa: PLC0415
    from antiphon.kit.proxy.proxy import run_until_signal  # noqa: PLC0415

    with _explain_errors():
        exchanges = read_cassette(cassette)
        server = open_player(exchanges, host, port, match=match, speed=speed, fallback_url=fallback)
        run_until_signal(server, f"replaying {len(exchanges)} exchanges")
