"""A conversation in a terminal: reads lines, shows replies, asks for the outputs of calls."""

from contextlib import suppress

from antiphon.console.chat.commands import MULTI_LINE_MARK, QuitError, run_command
from antiphon.console.chat.conversation import ReplyOutcome, TerminalConversation
from antiphon.console.chat.pieces import PendingCall
from antiphon.console.chat.screen import TerminalScreen
from antiphon.console.interrupts import PromptReader
from antiphon.kit.terminal_text import show_line

with suppress(ImportError):  # not on every system
    import readline  # noqa: F401  it gives `input` a history and the keys of an editor

PROMPT, NEXT_LINE_PROMPT = "> ", "… "
MAX_SHOWN_NAME_CHARS = 40
CANCELLED_OUTPUT = "The user cancelled this call."
STOP_HINT = "Ctrl-C again or /quit ends the program."


class ChatSession:
    """Runs a conversation until the user ends it."""

    def __init__(self, conversation: TerminalConversation, screen: TerminalScreen) -> None:
        self._conversation, self._screen, self._prompts = conversation, screen, PromptReader()
        self._was_interrupted = False
        """True after Ctrl-C, until a line is entered: the next Ctrl-C ends the program."""

    def run(self) -> None:
        """Reads messages and commands until Ctrl-D, Ctrl-C twice or `/quit`."""
        settings = self._conversation.settings
        place = f"{show_line(settings.model)} at {show_line(self._conversation.client.address.shown_url)}"
        self._screen.write_line("note", f"{place} ({self._conversation.api_name}). /help lists the commands.")
        with self._prompts:
            while self._take_turn():
                pass

    def _take_turn(self) -> bool:
        """Reads a message or a command and does what it says. Returns False at the end of the conversation."""
        try:
            text = self._read_message(PROMPT)
            self._was_interrupted = False
            if text.strip():
                self._take_line(text)
        except (EOFError, QuitError):
            self._screen.end_line()
            return False
        except KeyboardInterrupt:
            print()  # noqa: T201  the line of the prompt ends
            if self._was_interrupted:
                return False
            self._note_interrupt(STOP_HINT)
        except UnicodeDecodeError:
            self._screen.show_error("the line is not UTF-8")
        return True

    def _take_line(self, text: str) -> None:
        if text.startswith("/") and not text.startswith("//"):
            run_command(text.strip(), self._conversation, self._screen)
            return
        message = text.removeprefix("/") if text.startswith("//") else text
        outcome = self._conversation.ask(message, self._screen)
        self._report(outcome)
        while outcome.calls:
            outputs = self._ask_outputs(outcome.calls)
            if outputs is None:
                return
            outcome = self._conversation.answer_calls(outputs, self._screen)
            self._report(outcome)

    def _report(self, outcome: ReplyOutcome) -> None:
        if outcome.fault:
            self._screen.show_error(outcome.fault)
        if outcome.is_forgotten:
            self._screen.write_line("note", "The message is forgotten: send it again to ask once more.")
        if outcome.ending:
            self._screen.write_line("note", f"[incomplete: {show_line(outcome.ending)}]")
        if outcome.is_stopped:
            self._note_interrupt(f"Stopped. {STOP_HINT}")

    def _note_interrupt(self, text: str) -> None:
        self._was_interrupted = True
        self._screen.write_line("note", text)

    def _ask_outputs(self, calls: tuple[PendingCall, ...]) -> list[tuple[PendingCall, str]] | None:
        """Returns the outputs that the user types. None after Ctrl-C or Ctrl-D, which cancels the other calls."""
        outputs: list[tuple[PendingCall, str]] = []
        try:
            for call in calls:
                name = show_line(call.name, MAX_SHOWN_NAME_CHARS)
                outputs.append((call, self._read_message(f"output of {name}> ")))
        except (KeyboardInterrupt, EOFError, UnicodeDecodeError):
            print()  # noqa: T201  the line of the prompt ends
            cancelled = [(call, CANCELLED_OUTPUT) for call in calls[len(outputs) :]]
            self._conversation.add_outputs([*outputs, *cancelled])
            self._note_interrupt("The calls are cancelled. The model reads this with your next message.")
            return None
        return outputs

    def _read_message(self, prompt: str) -> str:
        """Returns a line, or the lines between two marks."""
        line = self._prompts.read_line(prompt)
        if not line.startswith(MULTI_LINE_MARK):
            return line
        line = line.removeprefix(MULTI_LINE_MARK)
        lines: list[str] = []
        while not line.endswith(MULTI_LINE_MARK):
            lines.append(line)
            line = self._prompts.read_line(NEXT_LINE_PROMPT)
        return "\n".join([*lines, line.removesuffix(MULTI_LINE_MARK)]).strip("\n")
