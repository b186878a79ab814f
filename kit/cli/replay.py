"""`antiphon replay`: serve the exchanges of a cassette."""

from pathlib import Path
from typing import Any

import click

DEFAULT_PORT = 8001


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
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option(
    "--port", default=DEFAULT_PORT, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: any free port."
)
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
    from antiphon.kit.cassette.player import run_player  # noqa: PLC0415  the command line starts fast
    from antiphon.kit.cassette.reading import CassetteError, read_cassette  # noqa: PLC0415
    from antiphon.kit.proxy.server import WireServerError  # noqa: PLC0415
    from antiphon.kit.proxy.upstream import UpstreamUrlError  # noqa: PLC0415

    try:
        run_player(read_cassette(cassette), host, port, match=match, speed=speed, fallback_url=fallback)
    except (CassetteError, WireServerError, UpstreamUrlError) as error:
        raise click.ClickException(str(error)) from None
