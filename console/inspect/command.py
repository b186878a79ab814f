"""`antiphon inspect`: what a model read and wrote in a turn, and why the turn ended."""

from typing import Any

import click

from antiphon.console.server_options import find_target, inspection_key_option, run_client, url_option

FORMS = ("chat", "messages", "completions", "test", "script", "cassette", "curl", "python", "json")


@click.command()
@click.argument("turn_id", metavar="[ID]", required=False)
@click.option("--last", is_flag=True, help="The last turn of your key, in place of an ID.")
@click.option("--follow", is_flag=True, help="Show the turn ID, or the one that runs or comes next, until it ends.")
@click.option("--at", type=click.IntRange(0), metavar="N", help="Show the response as of event N, and what N changed.")
@click.option("--prompt", is_flag=True, help="Show the tokens that the model read.")
@click.option("--as", "form", type=click.Choice(FORMS), help="Write the turn as another API sends it, or as a file.")
@click.option("--diff", "other_id", metavar="ID", help="Compare the request, prompt and output with another turn.")
@click.option("--verify", is_flag=True, help="Check the events. The exit status is 1 if there are errors.")
@url_option
@inspection_key_option
@click.pass_context
def inspect(context: click.Context, /, **options: Any) -> None:
    """Show a turn of a running server: why it ended, and its events with times in milliseconds.

    ID is that of a response. A terminal gets as much of each line as fits, a pipe whole lines. The page
    docs/inspect.md explains it.
    """
    _check_options(options)
    context.exit(_run(find_target(options["url"], options["api_key_file"], "page_key"), options))


def _check_options(options: dict[str, Any]) -> None:
    """Raises `click.UsageError` for options that exclude each other."""
    turn_id, other_id = options["turn_id"], options["other_id"]
    if options["last"] and (turn_id is not None or options["follow"]):
        raise click.UsageError("--last names a turn: use it without ID and without --follow")
    if turn_id is None and not options["last"] and not options["follow"]:
        raise click.UsageError("name a turn by its ID, or use --last or --follow")
    if any(each in ("", ".", "..") for each in (turn_id, other_id)):
        raise click.UsageError("an ID is that of a response, such as resp_123")
    chosen = [name for name in ("prompt", "verify") if options[name]]
    chosen += [name for name in ("at", "form", "other_id") if options[name] is not None]
    if len(chosen) > 1 or (chosen and options["follow"]):
        raise click.UsageError("use one of --follow, --at, --prompt, --as, --diff and --verify")


def _run(target: tuple[Any, str | None], options: dict[str, Any]) -> int:
    """Runs the command. Returns the exit status."""
    from antiphon.console.client import ServerClient  # noqa: PLC0415  the command line starts fast
    from antiphon.console.inspect.api import InspectApi  # noqa: PLC0415
    from antiphon.console.inspect.line_output import LineOutput  # noqa: PLC0415
    from antiphon.console.inspect.runner import InspectOptions, inspect_turn  # noqa: PLC0415
    from antiphon.console.interrupts import StoppedError  # noqa: PLC0415

    names = ("turn_id", "follow", "at", "prompt", "form", "other_id", "verify")
    asked = InspectOptions(**{name: options[name] for name in names})
    try:
        return run_client(inspect_turn(InspectApi(ServerClient(*target)), asked, LineOutput.open_standard_output()))
    except StoppedError:
        return 130
