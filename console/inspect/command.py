"""`antiphon inspect`: what a model read and wrote in a turn, and why the turn ended."""

from typing import Any

import click

from antiphon.console.server_options import inspection_key_option, url_option

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
    from antiphon.console.client import ChatClient  # noqa: PLC0415
    from antiphon.console.server_address import (  # noqa: PLC0415  the command line starts fast
        ServerAddressError,
        find_api_key,
        find_page_key,
        find_server,
    )

    try:
        address = find_server(options["url"])
        page_key = find_page_key(address) if options["api_key_file"] is None else None
        client = ChatClient(address, page_key or find_api_key(options["api_key_file"]))
    except ServerAddressError as error:
        raise click.UsageError(str(error)) from None
    context.exit(_run(client, options))


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


def _run(client: Any, options: dict[str, Any]) -> int:
    """Runs the command. Returns the exit status."""
    from antiphon.console.client import ReplyFailedError  # noqa: PLC0415
    from antiphon.console.inspect.api import InspectApi  # noqa: PLC0415
    from antiphon.console.inspect.line_output import LineOutput  # noqa: PLC0415
    from antiphon.console.inspect.runner import InspectOptions, inspect_turn  # noqa: PLC0415
    from antiphon.console.interrupts import StoppedError, run_until_interrupt  # noqa: PLC0415

    names = ("turn_id", "follow", "at", "prompt", "form", "other_id", "verify")
    asked = InspectOptions(**{name: options[name] for name in names})
    try:
        return run_until_interrupt(inspect_turn(InspectApi(client), asked, LineOutput.open_standard_output()))
    except StoppedError:
        return 130
    except RecursionError:
        raise click.ClickException("the server sent a value that is nested too deeply") from None
    except ReplyFailedError as error:
        raise click.ClickException(str(error)) from None
