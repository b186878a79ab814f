"""The token ids that a model really spoke, for the next turn that resends them as items.

A template lays an answer out in its own way: another cut of the same text into tokens, other blanks in the arguments
of a call. The engine's prefix cache knows only what was spoken, so a prompt that repeats a turn of this server gets
that turn's own ids back. It gets them only where the layout of the items as they came back *is* the layout of the
items as they were said, so a client that changed a letter is answered on what it sent.

Pure but for the lock: rendering happens in threads.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from events.inputs import AnyInput
from harmony.format import Conversation, Format, Prompt, RenderError

PREFILL = 32
"""Tokens that a prompt may end with and history does not show: the opener of the answer, an empty thought."""
COMPARED = 8
"""At most so many turns are laid out anew for one prompt, the latest ones first."""


class Turn(Struct, frozen=True, kw_only=True):
    """A turn that the model itself ended."""

    format: Format
    owner: str
    conversation: Conversation
    now: datetime
    """When its prompt was laid out: templates write the date."""
    laid: tuple[int, ...]
    """The prompt as the template lays it out."""
    read: tuple[int, ...]
    """The prompt as the model read it."""
    spoken: tuple[int, ...]
    items: tuple[AnyInput, ...]
    """What was spoken, as it would come back."""


class _Passage(Struct, frozen=True):
    """Where a layout begins with `laid`, the model had read and spoken `spoken`; both as bytes, which compare fast."""

    laid: bytes
    spoken: bytes


class Recall:
    """The latest turns, of all owners together at most `bound` tokens."""

    def __init__(self, bound: int = 2_000_000) -> None:
        self._bound = bound
        self._size = 0
        self._turns: OrderedDict[int, tuple[Turn, bytes]] = OrderedDict()
        self._passages: dict[int, _Passage | None] = {}
        self._count = 0
        self._lock = threading.Lock()

    def remember(self, turn: Turn) -> None:
        """Keep a turn; the oldest ones are forgotten."""
        with self._lock:
            self._count += 1
            self._turns[self._count] = turn, _packed(turn.laid[: _end(turn.format, turn.laid) + 1])
            self._size += _weight(turn)
            while self._size > self._bound:
                number, (oldest, _) = self._turns.popitem(last=False)
                self._passages.pop(number, None)
                self._size -= _weight(oldest)

    def prompt(self, form: Format, owner: str, laid: Prompt) -> Prompt:
        """The same prompt, with the longest stretch that this owner's model has read and spoken in its own ids."""
        whole = _packed(laid.tokens)
        best: _Passage | None = None
        for number in self._candidates(form, owner, whole):
            passage = self._passage(number)
            if passage and whole.startswith(passage.laid) and (best is None or len(best.laid) < len(passage.laid)):
                best = passage
        if best is None:
            return laid
        return msgspec.structs.replace(laid, tokens=tuple(array("I", best.spoken + whole[len(best.laid) :])))

    def _candidates(self, form: Format, owner: str, whole: bytes) -> list[int]:
        """Turns whose prompt this one begins with, but for what stands behind its last message; the latest first."""
        with self._lock:
            return [
                number
                for number, (turn, before) in reversed(self._turns.items())
                if turn.owner == owner and turn.format is form and before and whole.startswith(before)
            ][:COMPARED]

    def _passage(self, number: int) -> _Passage | None:
        """Laid out at the first question, not at the end of the turn: most turns are never followed."""
        if number not in self._passages:
            kept = self._turns.get(number)
            if kept is None:
                return None
            self._passages[number] = _compared(kept[0])
        return self._passages[number]


def _compared(turn: Turn) -> _Passage | None:
    """The turn as history lays it out beside the turn as it was; None where the two do not say the same."""
    form = turn.format
    after = msgspec.structs.replace(turn.conversation, items=(*turn.conversation.items, *turn.items))
    try:
        laid = form.render(after, now=turn.now).tokens
    except RenderError:
        return None
    shared, end = _shared(laid, turn.laid), _end(form, laid)
    if len(turn.laid) - shared > PREFILL or end <= shared or turn.spoken[-1] not in form.end_ids:
        return None
    # Reasoning that history drops, text that it clips, another order of a header: then history has its own words.
    if _squeezed(form, laid[shared:end]) != _squeezed(form, turn.spoken[:-1]):
        return None
    spoken = (*turn.read, *turn.spoken[:-1], laid[end])  # a final answer may end otherwise than in history
    return _Passage(_packed(laid[: end + 1]), _packed(spoken))


def _squeezed(form: Format, tokens: Sequence[int]) -> str:
    return "".join(form.decode(tokens).split())


def _end(form: Format, tokens: Sequence[int]) -> int:
    """Where the last message ends; -1 where none does."""
    return next((place for place in reversed(range(len(tokens))) if tokens[place] in form.end_ids), -1)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _weight(turn: Turn) -> int:
    return 2 * len(turn.laid) + len(turn.spoken)


def _packed(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()
