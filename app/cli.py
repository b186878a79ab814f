"""`antiphon serve`: from the words of a command line to a running server, or to one line that says what is wrong.

Nothing that takes long to import is imported here before the engine's process has begun: it needs seconds for its own.
"""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from antiphon.app.serve_options import Refusal, Wish
from antiphon.app.settings import ANYWHERE, LOOPBACK, Settings, digest
from antiphon.engine.process.spawn import Early, Process
from antiphon.harmony.dialects import NAMES

PLAIN_SETTINGS = """host port hosts reasoning_as max_output_tokens drain store_days store_gib secret
    websocket media""".split()
"""What of a command line is a setting as it stands."""
ENGINE = "antiphon.engine.builder"
"""What the engine's process imports."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="antiphon")
def main() -> None:
    """Antiphon: a self-hosted server for the OpenAI Responses API."""


@main.command()
@click.argument("source", required=False)
@click.option("--name", "names", multiple=True, help="A further name that clients may ask for; may be repeated.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free port.")
@click.option("--api-key", "keys", multiple=True, envvar="ANTIPHON_API_KEY", help="Key to ask for; may be repeated.")
@click.option("--allow-host", "hosts", multiple=True, help="A further host name to be reached under.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without a key.")
@click.option("--offline", is_flag=True, help="Never ask the hub; take what is in the local cache.")
@click.option("--engine", type=click.Choice(["torch", "scripted"]), default="torch", show_default=True)
@click.option("--script", type=click.Path(path_type=Path), help="TOML file that the scripted engine plays.")
@click.option("--dialect", type=click.Choice(NAMES), help="How the model writes; found out if left out.")
@click.option("--device", help="cpu, cuda, cuda:1, …; chosen if left out.")
@click.option("--context", type=click.IntRange(1), help="Tokens of context; at most the model's own.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads of the engine; chosen if left out.")
@click.option("--compile/--no-compile", default=True, show_default=True, help="Kernels by this machine's C compiler.")
@click.option("--slots", type=click.IntRange(1), help="Requests that run at once; the others wait.")
@click.option("--kv-gib", type=click.FloatRange(0, min_open=True), help="Memory for keys and values, in GiB.")
@click.option(
    "--kv-dtype",
    type=click.Choice(["float32", "float16"]),
    help="What keys and values are kept in on a CPU; left out: float16 beside int8, else as they are.",
)
@click.option("--quantize", type=click.Choice(["int8"]), help="8-bit linear layers, on a CPU; left out: as they are.")
@click.option("--deterministic", is_flag=True, help="The same seed gives the same tokens, whatever else is running.")
@click.option(
    "--reasoning-as",
    type=click.Choice(["content", "summary", "both"]),
    default="content",
    show_default=True,
    help="How raw reasoning is told. Codex shows summaries only.",
)
@click.option(
    "--store",
    envvar="ANTIPHON_STORE",
    help="File that keeps responses, or `memory`; left out: one in your data folder.",
)
@click.option(
    "--secret",
    envvar="ANTIPHON_SECRET",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the secret that seals what clients keep, made if missing; left out: beside the store.",
)
@click.option("--store-days", default=30.0, show_default=True, type=click.FloatRange(0), help="How long they are kept.")
@click.option("--store-gib", default=4.0, show_default=True, type=click.FloatRange(0), help="How much of them is kept.")
@click.option("--websocket/--no-websocket", default=True, show_default=True, help="Responses over a WebSocket, too.")
@click.option(
    "--media",
    type=click.Choice(["placeholder", "refuse"]),
    default="placeholder",
    show_default=True,
    help="Images and files, which no model here takes in: name them in the prompt, or answer 400.",
)
@click.option("--log-format", type=click.Choice(["console", "json"]), default="console", show_default=True)
@click.option("--max-output-tokens", type=click.IntRange(1), help="For requests that set no limit.")
@click.option(
    "--drain", default=5.0, show_default=True, type=click.FloatRange(0), help="Seconds for open turns at the end."
)
def serve(**given: Any) -> None:
    """Serve SOURCE, a folder or a hub id; without one, the embedded model.

    A folder holds safetensors, config.json and tokenizer.json. A hub id (owner/name) is downloaded once.
    """
    chosen: dict[str, Any] = {name: given[name] for name in PLAIN_SETTINGS}
    settings = Settings(keys=tuple(digest(key) for key in given["keys"]), store=_store_file(given["store"]), **chosen)
    wish = Wish(**{name: given[name] for name in Wish.__struct_fields__})
    _check_bind(settings, insecure=given["insecure"])
    with Early(ENGINE) if wish.engine == "torch" else nullcontext(Process) as spawn:
        from antiphon.app.launch import launch  # noqa: PLC0415  see above

        launch(wish, settings, given["log_format"], spawn)


@main.command()
def dialects() -> None:
    """List the dialects: who writes so, and what of it is served."""
    from rich.console import Console  # noqa: PLC0415  see above
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from antiphon.harmony.detect import overview  # noqa: PLC0415

    screen = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("dialect", "models", "reasoning", "calls", "custom tools"):
        table.add_column(head, overflow="fold")
    for row in overview():
        table.add_row(*map(escape, row))
    screen.print(table)


def _store_file(said: str | None) -> Path | None:
    """The file that keeps responses; None: they are kept in memory."""
    if said == "memory":
        return None
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(said).expanduser() if said else data / "antiphon" / "responses.db"


def _check_bind(settings: Settings, *, insecure: bool) -> None:
    """Whoever can reach an open server can use it: nobody beyond this machine does so by accident."""
    if settings.keys or insecure or settings.host in LOOPBACK or settings.host.startswith("127."):
        return
    where = "every network" if settings.host in ANYWHERE else settings.host
    raise Refusal(f"--host {settings.host} opens the server to {where}: give --api-key KEY, or say --insecure")


if __name__ == "__main__":
    main()
