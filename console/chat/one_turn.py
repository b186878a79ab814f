"""One turn of a pipe: standard input is the message, standard output gets the answer."""

import sys

import click

from antiphon.console.chat.conversation import TerminalConversation
from antiphon.console.chat.screen import PipeOutput
from antiphon.kit.terminal_text import show_line

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130
"""Exit statuses: the reply failed or is incomplete; standard input cannot be used; Ctrl-C."""


def run_one_turn(conversation: TerminalConversation) -> int:
    """Sends standard input as one message. Returns the exit status: 0 for a complete reply."""
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        return _report("standard input is not UTF-8", UNUSABLE)
    if not text.strip():
        return _report("standard input is empty", UNUSABLE)
    output = PipeOutput(is_terminal=sys.stdout.isatty())
    outcome = conversation.ask(text, output)
    for call in outcome.calls:
        output.show_call(call)
    if outcome.is_stopped:
        return INTERRUPTED
    if outcome.fault:
        return _report(outcome.fault, FAILED)
    if outcome.ending:
        return _report(f"the reply is incomplete: {outcome.ending}", FAILED)
    return 0


def _report(message: str, status: int) -> int:
    click.echo(f"Error: {show_line(message)}", err=True)
    return status
