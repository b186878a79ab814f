"""The parts that the APIs have in common: pieces of a reply to show, calls to answer, and the base of an API."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import ClassVar, Literal

import msgspec

from antiphon.console.client import ReplyFailedError
from antiphon.kit.json_values import Json

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


class ReplyReader(ABC):
    """Reads the events of one reply."""

    def __init__(self) -> None:
        self.answer = StringIO()
        """The answer so far. A text that grows would be copied for each delta."""
        self.ending = ""
        """Why a reply that has ended is incomplete; empty if it is complete."""
        self.calls: list[PendingCall] = []
        self.has_ended = False

    @abstractmethod
    def read_event(self, event: Json) -> Iterable[ReplyPiece]:
        """Returns the pieces of an event. Raises `ReplyFailedError`."""

    def finish(self) -> Iterable[ReplyPiece]:
        """Returns the pieces of the end of the stream. Raises `ReplyFailedError` if the reply is not whole."""
        if not self.has_ended:
            raise ReplyFailedError("the server closed the connection before the end of the reply")
        return ()

    @abstractmethod
    def list_items(self) -> list[Json]:
        """Returns the items or messages of the reply for the next request."""

    def _show_delta(self, kind: PieceKind, text: str) -> ReplyPiece:
        """Returns the piece of a delta, and adds it to the answer if it is one."""
        self.answer.write(text if kind == "text" else "")
        return ReplyPiece(kind, text)

    def _add_call(self, call_id: str, name: str, arguments: str, *, is_custom: bool = False) -> ReplyPiece:
        """Adds a whole call, and returns its piece."""
        self.calls.append(PendingCall(call_id=call_id, name=name, arguments=arguments, is_custom=is_custom))
        return ReplyPiece("call", f"{name}({arguments})")


class ChatApi(ABC):
    """A conversation in the form of one API."""

    path: ClassVar[str]
    headers: ClassVar[Mapping[str, str]] = {}
    open_reply: ClassVar[type[ReplyReader]]
    """Makes a reader of the reply."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        """Items or messages, oldest first, as they are sent."""

    def add_text(self, text: str) -> None:
        """Adds a message of the user."""
        self.items.append({"role": "user", "content": text})

    @abstractmethod
    def add_outputs(self, outputs: Sequence[tuple[PendingCall, str]]) -> None:
        """Adds the outputs of all calls of a reply."""

    def build_body(self, settings: ChatSettings) -> Json:
        """Returns the body of the request for the next reply."""
        fields = {"model": settings.model, "stream": True} | self._list_fields(settings)
        return {name: value for name, value in fields.items() if value is not None}

    @abstractmethod
    def _list_fields(self, settings: ChatSettings) -> Json:
        """Returns the fields of the body whose form is the API's own. Those with None are left out."""


def make_partial_message(text: str) -> list[Json]:
    """Returns the message of an answer that was stopped, in a form that all APIs read; none without text."""
    return [{"role": "assistant", "content": text}] if text else []
