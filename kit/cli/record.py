"""`antiphon record`: write the exchanges between clients and a server to a cassette."""

from pathlib import Path

import click

DEFAULT_PORT = 8001


@click.command()
@click.argument("upstream")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Cassette to write: TOML text, without secrets.",
)
@click.option("--append", is_flag=True, help="Add to a cassette that exists.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option(
    "--port", default=DEFAULT_PORT, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: any free port."
)
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
    from antiphon.kit.cassette.reading import CassetteError  # noqa: PLC0415  the command line starts fast
    from antiphon.kit.cassette.recorder import run_recorder  # noqa: PLC0415
    from antiphon.kit.proxy.server import WireServerError  # noqa: PLC0415
    from antiphon.kit.proxy.upstream import UpstreamUrlError  # noqa: PLC0415

    try:
        run_recorder(upstream, out, host, port, api_key=api_key, append=append)
    except (CassetteError, WireServerError, UpstreamUrlError) as error:
        raise click.ClickException(str(error)) from None
