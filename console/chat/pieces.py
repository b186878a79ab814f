"""The parts that the APIs have in common: pieces of a reply to show, calls to answer, and the interface of an API."""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import ClassVar, Literal, Protocol

import msgspec

from antiphon.console.client import Json

PieceKind = Literal["text", "reasoning", "call", "note", "break"]
"""`text` is the answer; `call` is a whole call; `note` tells what the server does; `break` ends a paragraph."""


class ReplyPiece(msgspec.Struct, frozen=True):
    """A part of a reply, in the order in which it is shown. The text is what the server sent."""

    kind: PieceKind
    text: str = ""


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool that the user answers."""

    call_id: str
    name: str
    arguments: str
    """JSON, or any text for a custom tool."""
    is_custom: bool = False


class ChatSettings(msgspec.Struct, kw_only=True):
    """The settings of every request beside the conversation."""

    model: str
    instructions: str | None = None
    effort: str | None = None
    tools: Sequence[Json] = ()
    """In the form of the Responses API."""
    max_output_tokens: int | None = None


class ReplyReader(Protocol):
    """Reads the events of one reply."""

    answer: StringIO
    """The answer so far. A text that grows would be copied for each delta."""
    ending: str
    """Why a reply that has ended is incomplete; empty if it is complete."""
    calls: list[PendingCall]

    def read_event(self, event: Json) -> Iterable[ReplyPiece]:
        """Returns what an event shows. Raises `ReplyFailedError`."""

    def finish(self) -> Iterable[ReplyPiece]:
        """Returns what the end of the stream shows. Raises `ReplyFailedError` if the reply is not whole."""

    def list_items(self) -> list[Json]:
        """Returns the items or messages of the reply for the next request."""


class ChatApi(Protocol):
    """A conversation in the form of one API."""

    path: ClassVar[str]
    headers: ClassVar[Mapping[str, str]]
    items: list[Json]
    """Items or messages, oldest first, as they are sent."""

    def add_text(self, text: str) -> None:
        """Adds a message of the user."""

    def add_outputs(self, outputs: Sequence[tuple[PendingCall, str]]) -> None:
        """Adds the outputs of all calls of a reply."""

    def build_body(self, settings: ChatSettings) -> Json:
        """Returns the body of the request for the next reply."""

    def open_reply(self) -> ReplyReader:
        """Returns a reader of the reply."""


def show_call(call: PendingCall) -> ReplyPiece:
    """Returns the piece of a call."""
    return ReplyPiece("call", f"{call.name}({call.arguments})")


def make_partial_message(text: str) -> list[Json]:
    """Returns the message of an answer that was stopped, in a form that all APIs read; none without text."""
    return [{"role": "assistant", "content": text}] if text else []
