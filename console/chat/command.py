"""`antiphon chat`: a conversation with a server."""

import sys
from pathlib import Path
from typing import Any

import click

from antiphon.console.server_options import find_target, run_client, url_option


@click.command()
@url_option
@click.option("--model", help="Model to ask. Default: the first of /v1/models.")
@click.option("--instructions", metavar="TEXT", help="Instructions, which systems and models also call system prompt.")
@click.option(
    "--api", type=click.Choice(["responses", "chat", "messages"]), default="responses", show_default=True, help="API."
)
@click.option("--effort", metavar="LEVEL", help="Effort of reasoning, such as low or high. Default: the model's own.")
@click.option(
    "--tools",
    "tool_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON list of tools. You type in the outputs of their calls.",
)
@click.option(
    "--max-output-tokens", type=click.IntRange(1), help="Limit of a reply. Default: the server's; 8192 for messages."
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File whose first line is the API key. Default: $ANTIPHON_API_KEY, else $OPENAI_API_KEY.",
)
@click.pass_context
def chat(context: click.Context, /, **options: Any) -> None:
    """Talk to a model of a running server; /help lists the commands.

    Reasoning is dimmed. Ctrl-C stops a reply. With a pipe, standard input is one message, and standard output gets the
    answer alone; the exit status is 1 if the reply failed or is incomplete. The page docs/chat.md explains it.
    """
    from antiphon.console.chat.tool_file import ToolFileError, load_tools  # noqa: PLC0415  the command line starts fast
    from antiphon.console.client import ServerClient  # noqa: PLC0415

    client = ServerClient(*find_target(options["url"], options["api_key_file"]))
    try:
        tools = load_tools(options["tool_file"], options["api"]) if options["tool_file"] is not None else []
    except ToolFileError as error:
        raise click.UsageError(str(error)) from None
    context.exit(_run(client, tools, options))


def _run(client: Any, tools: list[Any], options: dict[str, Any]) -> int:
    """Runs the conversation. Returns the exit status."""
    from antiphon.console.chat.conversation import TerminalConversation  # noqa: PLC0415
    from antiphon.console.chat.one_turn import run_one_turn  # noqa: PLC0415
    from antiphon.console.chat.pieces import ChatSettings  # noqa: PLC0415
    from antiphon.console.chat.screen import TerminalScreen, supports_styles  # noqa: PLC0415
    from antiphon.console.chat.session import ChatSession  # noqa: PLC0415

    settings = ChatSettings(
        model=options["model"] or _find_first_model(client),
        instructions=options["instructions"],
        effort=options["effort"],
        tools=tools,
        max_output_tokens=options["max_output_tokens"],
    )
    conversation = TerminalConversation(client, options["api"], settings)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return run_one_turn(conversation)
    ChatSession(conversation, TerminalScreen(has_styles=supports_styles())).run()
    return 0


def _find_first_model(client: Any) -> str:
    from antiphon.console.interrupts import StoppedError  # noqa: PLC0415

    try:
        names = run_client(client.list_models())
    except StoppedError:
        raise click.Abort from None
    if not names:
        raise click.ClickException(f"{client.address.shown_url}/models lists no model: use --model")
    return str(names[0])
