"""The token ids that a model really spoke, for the next turn that resends them as items.

A template lays an answer out in its own way: another cut of the same text into tokens, other blanks in the arguments
of a call. The engine's prefix cache knows only what was spoken, so a prompt that repeats a turn of this server gets
that turn's own ids back. It gets them only where the layout of the items as they came back *is* the layout of the
items as they were said, so a client that changed a letter is answered on what it sent.

Pure but for the lock: rendering happens in threads.
"""

import threading
from array import array
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property

import msgspec
from msgspec import Struct

from app.errors import ApiError
from app.requests.items import read_item
from events.response import OutputItem
from harmony.format import Conversation, Format, Prompt, RenderError

PREFILL = 32
"""Tokens that a prompt may end with and history does not show: the opener of the answer, an empty thought."""
OWN = 256
"""A turn of few tokens takes as much memory as so many of them, measured."""
COMPARED = 8
"""At most so many turns are laid out anew for one prompt, the latest ones first."""


class Layout(Struct, frozen=True, kw_only=True):
    """A conversation laid out for a model."""

    format: Format
    owner: str
    conversation: Conversation
    now: datetime
    """Templates write the date."""
    laid: tuple[int, ...]
    """The prompt as the template lays it out."""
    prompt: Prompt
    """The prompt as the model reads it."""
    grammar: str | None = None
    """What the answer is held to."""


class Spoken(Struct, frozen=True):
    """What a model spoke after a prompt, and the items that were heard."""

    layout: Layout
    spoken: tuple[int, ...]
    output: tuple[OutputItem, ...]


class _Passage(Struct, frozen=True):
    """Where a layout begins with `laid`, the model had read and spoken `spoken`; both as bytes, which compare fast."""

    laid: bytes
    spoken: bytes


class Recall:
    """The latest turns, of all owners together at most `bound` tokens, or the memory of so many."""

    def __init__(self, bound: int = 2_000_000) -> None:
        self._bound = bound
        self._size = 0
        self._turns: deque[_Kept] = deque()
        self._lock = threading.Lock()

    def read(self, form: Format, owner: str, conversation: Conversation, now: datetime) -> Layout:
        """Lay a conversation out; what this owner's model has spoken of it stands there as it was spoken.

        Raises `harmony.format.RenderError`.
        """
        prompt = form.render(conversation, now=now)
        return Layout(
            format=form,
            owner=owner,
            conversation=conversation,
            now=now,
            laid=prompt.tokens,
            prompt=self._spoken(form, owner, prompt),
        )

    def remember(self, turn: Spoken) -> None:
        """Keep a turn; the oldest ones are forgotten."""
        layout = turn.layout
        before = _packed(layout.laid[: _end(layout.format, layout.laid) + 1])
        if not turn.spoken or not before:
            return
        with self._lock:
            self._turns.append(_Kept(turn, before))
            self._size += _weight(turn)
            while self._size > self._bound:
                self._size -= _weight(self._turns.popleft().turn)

    def _spoken(self, form: Format, owner: str, prompt: Prompt) -> Prompt:
        whole = _packed(prompt.tokens)
        best: _Passage | None = None
        for kept in self._candidates(form, owner, whole):
            passage = kept.passage
            if passage and whole.startswith(passage.laid) and (best is None or len(best.laid) < len(passage.laid)):
                best = passage
        if best is None:
            return prompt
        return msgspec.structs.replace(prompt, tokens=tuple(array("I", best.spoken + whole[len(best.laid) :])))

    def _candidates(self, form: Format, owner: str, whole: bytes) -> list["_Kept"]:
        """Turns whose prompt this one begins with, but for what stands behind its last message; the latest first."""
        with self._lock:
            return [
                kept
                for kept in reversed(self._turns)
                if kept.turn.layout.owner == owner and kept.turn.layout.format is form and whole.startswith(kept.before)
            ][:COMPARED]


class _Kept:
    """A turn that is remembered. Who holds one may go on using it while others forget it."""

    def __init__(self, turn: Spoken, before: bytes) -> None:
        self.turn, self.before = turn, before

    @cached_property
    def passage(self) -> "_Passage | None":
        """Laid out at the first question, not at the end of the turn: most turns are never followed."""
        return _compared(self.turn)


def _compared(turn: Spoken) -> _Passage | None:
    """The turn as history lays it out beside the turn as it was; None where the two do not say the same."""
    layout, form = turn.layout, turn.layout.format
    spoken = turn.spoken[:-1] if turn.spoken[-1] in form.end_ids else turn.spoken
    try:
        back = [read_item(msgspec.to_builtins(item), "output") for item in turn.output]
        after = msgspec.structs.replace(layout.conversation, items=(*layout.conversation.items, *back))
        laid = form.render(after, now=layout.now).tokens
    except (ApiError, RenderError):
        return None
    shared, end = _shared(laid, layout.laid), _end(form, laid)
    if len(layout.laid) - shared > PREFILL or end <= shared:
        return None
    # Reasoning that history drops, text that it clips, another order of a header: then history has its own words.
    if _squeezed(form, laid[shared:end]) != _squeezed(form, spoken):
        return None
    # The end is history's: a final answer may have ended otherwise, a turn that was stopped has none.
    return _Passage(_packed(laid[: end + 1]), _packed((*layout.prompt.tokens, *spoken, laid[end])))


def _squeezed(form: Format, tokens: Sequence[int]) -> str:
    return "".join(form.decode(tokens).split())


def _end(form: Format, tokens: Sequence[int]) -> int:
    """Where the last message ends; -1 where none does."""
    return next((place for place in reversed(range(len(tokens))) if tokens[place] in form.end_ids), -1)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _weight(turn: Spoken) -> int:
    return OWN + 2 * len(turn.layout.laid) + len(turn.spoken)


def _packed(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()
