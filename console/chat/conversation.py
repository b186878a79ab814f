"""One conversation with a server: its settings, its items, and the replies that extend it."""

import json
import os
from contextlib import aclosing
from pathlib import Path

import msgspec

from antiphon.console.chat.chat_api import ChatCompletionsApi
from antiphon.console.chat.messages_api import MessagesApi
from antiphon.console.chat.pieces import ChatApi, ChatSettings, PendingCall, ReplyReader, make_partial_message
from antiphon.console.chat.responses_api import ResponsesApi
from antiphon.console.chat.screen import ReplyOutput
from antiphon.console.client import ReplyFailedError, ServerClient, parse_frame
from antiphon.console.interrupts import StoppedError, run_until_interrupt

APIS: dict[str, type[ChatApi]] = {
    "responses": ResponsesApi,
    "chat": ChatCompletionsApi,
    "messages": MessagesApi,
}
PRIVATE_MODE = 0o600


class ReplyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a reply ended. The texts may quote the server."""

    is_forgotten: bool = False
    """True if the user's message is not part of the conversation, because no text followed it."""

    calls: tuple[PendingCall, ...] = ()
    fault: str = ""
    """Why it failed."""
    ending: str = ""
    """Why it is incomplete."""
    is_stopped: bool = False
    """True if Ctrl-C ended it."""


class TerminalConversation:
    """The items of one conversation. `settings` may be changed between replies."""

    def __init__(self, client: ServerClient, api: str, settings: ChatSettings) -> None:
        self.client, self.api_name, self.settings = client, api, settings
        self.shows_raw = False
        self._api = APIS[api]()

    @property
    def num_items(self) -> int:
        """Number of items or messages."""
        return len(self._api.items)

    def list_models(self) -> list[str]:
        """Returns the names of the server's models. Raises `ReplyFailedError` and `StoppedError`."""
        return run_until_interrupt(self.client.list_models())

    def clear(self) -> None:
        """Forgets all items."""
        self._api.items.clear()

    def ask(self, text: str, output: ReplyOutput) -> ReplyOutcome:
        """Sends a message of the user. One whose reply failed or was stopped without a text is forgotten."""
        start = self.num_items
        self._api.add_text(text)
        outcome = self._run_reply(output)
        if self.num_items == start + 1 and (outcome.fault or outcome.is_stopped):
            del self._api.items[start:]
            return msgspec.structs.replace(outcome, is_forgotten=True)
        return outcome

    def add_outputs(self, outputs: list[tuple[PendingCall, str]]) -> None:
        """Adds the outputs of the calls of a reply."""
        self._api.add_outputs(outputs)

    def answer_calls(self, outputs: list[tuple[PendingCall, str]], output: ReplyOutput) -> ReplyOutcome:
        """Sends the outputs of the calls of a reply. They stay, whatever becomes of the next reply."""
        self.add_outputs(outputs)
        return self._run_reply(output)

    def _run_reply(self, output: ReplyOutput) -> ReplyOutcome:
        reader, fault, is_stopped = self._api.open_reply(), "", False
        try:
            run_until_interrupt(self._read_reply(reader, output))
        except ReplyFailedError as error:
            fault = str(error)
        except StoppedError:
            is_stopped = True
        output.end_reply()
        if fault or is_stopped or reader.ending:
            self._api.items += make_partial_message(reader.answer.getvalue())
            return ReplyOutcome(fault=fault, ending=reader.ending, is_stopped=is_stopped)
        self._api.items += reader.list_items()
        return ReplyOutcome(calls=tuple(reader.calls))

    async def _read_reply(self, reader: ReplyReader, output: ReplyOutput) -> None:
        body = self._api.build_body(self.settings)
        async with aclosing(self.client.read_frames(self._api.path, body, self._api.headers)) as frames:
            async for frame in frames:
                if self.shows_raw:
                    output.show_raw(frame.name, frame.data)
                if (event := parse_frame(frame)) is None:
                    break
                for piece in reader.read_event(event):
                    if not self.shows_raw:
                        output.show_piece(piece)
        for piece in reader.finish():
            if not self.shows_raw:
                output.show_piece(piece)

    def save(self, path: Path) -> None:
        """Writes the conversation to a new file that only its owner can read. It has no key.

        Raises `OSError`, and `RecursionError` for a server's item that is nested too deeply.
        """
        saved = {
            "url": self.client.address.shown_url,
            "api": self.api_name,
            "model": self.settings.model,
            "instructions": self.settings.instructions,
            "effort": self.settings.effort,
            "tools": list(self.settings.tools),
            "items": self._api.items,
        }
        text = json.dumps(saved, indent=2)  # before the file is there: what a server sent may be nested too deeply
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
