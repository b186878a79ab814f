"""What a dialect may say: the input alphabet of the machine.

A dialect turns a model's tokens into these, in the order in which the model spoke. They carry no numbers and
no ids of ours: those belong to the machine.
"""

from typing import Literal

from msgspec import Struct

from antiphon.events.hosted import HostedItem
from antiphon.events.items import Annotation, Compaction, Logprob, Phase

ToolKind = Literal["function", "custom"]


class PlacedLogprob(Struct, frozen=True, gc=False):
    """A token's log-probability, and where the token's first character stands in the segment's text.

    A token that only completes a character begun by an earlier one has the position of that character.
    """

    offset: int
    logprob: Logprob


class Think(Struct, frozen=True, gc=False):
    """More reasoning."""

    text: str


class Say(Struct, frozen=True, gc=False):
    """More text for the user. `phase` is None where the dialect does not know it. `logprobs` rise by `at`."""

    text: str
    phase: Phase | None = None
    logprobs: tuple[PlacedLogprob, ...] = ()


class Refuse(Struct, frozen=True, gc=False):
    """More of a refusal."""

    text: str


class Cite(Struct, frozen=True, gc=False):
    """A source for the text of the open message. `length`: for so many characters, those that were said last.

    Then the annotation's places are the machine's to fill in: only it knows where in the text they stand.
    """

    annotation: Annotation
    length: int | None = None


class Call(Struct, frozen=True, gc=False):
    """A tool call begins. `call_id` is the model's own where the dialect has one, else None: the machine mints."""

    name: str
    kind: ToolKind = "function"
    call_id: str | None = None
    namespace: str | None = None


class Arguments(Struct, frozen=True, gc=False):
    """More of the open call's arguments (JSON text) or, for a custom tool, of its raw input."""

    text: str


class Close(Struct, frozen=True, gc=False):
    """What is open is whole: its dialect has seen what ends it."""


class CompleteItem(Struct, frozen=True, gc=False):
    """An item that is born complete. Its id is replaced by one of the machine's when it is empty."""

    item: Compaction | HostedItem


Segment = Think | Say | Refuse | Cite | Call | Arguments | Close | CompleteItem
