"""Commands of a conversation: lines that begin with `/`."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from antiphon.console.chat.conversation import TerminalConversation
from antiphon.console.chat.screen import TerminalScreen
from antiphon.console.client import ReplyFailedError
from antiphon.console.interrupts import StoppedError
from antiphon.kit.terminal_text import show_line

OFF = "off"
MULTI_LINE_MARK = '"""'


class LineCommand(msgspec.Struct, frozen=True):
    """A command: what follows its name, what it does, and the function that does it."""

    argument: str
    title: str
    run: Callable[[TerminalConversation, TerminalScreen, str], None]


class QuitError(Exception):
    """Raised to end the conversation."""


def run_command(line: str, conversation: TerminalConversation, screen: TerminalScreen) -> None:
    """Runs the command of a line. Raises `QuitError`."""
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        screen.show_error(f"there is no command {name}; /help lists them, and // begins a message with /")
        return
    try:
        command.run(conversation, screen, argument.strip())
    except ReplyFailedError as error:
        screen.show_error(str(error))
    except StoppedError:
        screen.write_line("note", "Stopped.")


def _show_help(_: TerminalConversation, screen: TerminalScreen, __: str) -> None:
    for name, command in COMMANDS.items():
        screen.write_line("text", " ".join(filter(None, (name, command.argument))))
        screen.write_line("note", f"    {command.title}")
    screen.write_line("text", f"{MULTI_LINE_MARK} begins and ends many lines.")
    screen.write_line("text", "// begins a message with /.")
    screen.write_line("text", "Ctrl-C stops a reply, twice the program.")


def _set_model(conversation: TerminalConversation, screen: TerminalScreen, name: str) -> None:
    if name:
        conversation.settings.model = name
        screen.write_line("note", f"model: {show_line(name)}")
    else:
        for known in conversation.list_models():
            mark = "*" if known == conversation.settings.model else " "
            screen.write_line("text", f"{mark} {show_line(known)}")


def _set_instructions(conversation: TerminalConversation, screen: TerminalScreen, text: str) -> None:
    if text:
        conversation.settings.instructions = None if text == OFF else text
    screen.write_line("note", f"instructions: {show_line(conversation.settings.instructions or 'none')}")


def _set_effort(conversation: TerminalConversation, screen: TerminalScreen, level: str) -> None:
    if level:
        conversation.settings.effort = None if level == OFF else level
    screen.write_line("note", f"effort: {show_line(conversation.settings.effort or 'the default of the model')}")


def _clear(conversation: TerminalConversation, screen: TerminalScreen, _: str) -> None:
    conversation.clear()
    screen.write_line("note", "The conversation is empty. The instructions stay.")


def _toggle_raw(conversation: TerminalConversation, screen: TerminalScreen, _: str) -> None:
    conversation.shows_raw = not conversation.shows_raw
    screen.write_line("note", "Replies are shown as " + ("events." if conversation.shows_raw else "text."))


def _save(conversation: TerminalConversation, screen: TerminalScreen, name: str) -> None:
    if not name:
        screen.show_error("name a file: /save FILE")
        return
    path = Path(name).expanduser()
    try:
        conversation.save(path)
    except RecursionError:
        screen.show_error("an item of the conversation is nested too deeply to be written")
        return
    except OSError as error:
        hint = "; name another one" if isinstance(error, FileExistsError) else ""
        screen.show_error(f"{path}: {error.strerror or error}{hint}")
        return
    screen.write_line("note", f"{conversation.num_items} items are in {show_line(str(path))}")


def _quit(_: TerminalConversation, __: TerminalScreen, ___: str) -> None:
    raise QuitError


COMMANDS = {
    "/help": LineCommand("", "Lists the commands.", _show_help),
    "/model": LineCommand("[NAME]", "Changes the model, or lists them.", _set_model),
    "/system": LineCommand("[TEXT|off]", "Sets the instructions.", _set_instructions),
    "/effort": LineCommand("[LEVEL|off]", "Sets the effort of reasoning.", _set_effort),
    "/clear": LineCommand("", "Forgets the conversation.", _clear),
    "/raw": LineCommand("", "Shows events in place of text.", _toggle_raw),
    "/save": LineCommand("FILE", "Writes it to a new JSON file.", _save),
    "/quit": LineCommand("", "Ends the program, as Ctrl-D does.", _quit),
}
