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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from heapq import nlargest
from itertools import islice

import msgspec
from msgspec import Struct

from antiphon.app.errors import ApiError
from antiphon.app.requests.input_items import read_item
from antiphon.events.response import OutputItem
from antiphon.harmony.format import ModelFormat, PromptInput, RenderedPrompt, RenderError

PREFILL = 32
"""Tokens that a prompt may end with and history does not show: the opener of the answer, an empty thought."""
OWN = 256
"""A turn of few tokens takes as much memory as so many of them, measured."""
COMPARED = 8
"""At most so many turns are laid out anew for one prompt, the latest ones first."""


class Layout(Struct, frozen=True, kw_only=True):
    """A conversation laid out for a model."""

    format: ModelFormat
    owner: str
    conversation: PromptInput
    now: datetime
    """Templates write the date."""
    laid: tuple[int, ...]
    """The prompt as the template lays it out."""
    prompt: RenderedPrompt
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


_Start = tuple[str, int, bytes]
"""Whose text it is, for which format, and a digest of it. Formats that are remembered live: no id is another one's."""


class Recall:
    """The latest turns, of all owners together at most `bound` tokens, or the memory of so many."""

    def __init__(self, bound: int = 2_000_000) -> None:
        self._bound = bound
        self._size = 0
        self._count = 0
        self._turns: deque[_Kept] = deque()
        self._by_start: dict[_Start, deque[_Kept]] = {}
        self._lock = threading.Lock()

    def read(self, form: ModelFormat, owner: str, conversation: PromptInput, now: datetime) -> Layout:
        """Lay a conversation out; what this owner's model has spoken of it stands there as it was spoken.

        Raises `harmony.format.RenderError`.
        """
        prompt = form.render_prompt(conversation, now=now, owner=owner)
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
        starts = _starts(layout.format, layout.owner, layout.laid)
        if not turn.spoken or not starts:
            return
        with self._lock:
            self._count += 1
            kept = _Kept(turn, starts[-1], self._count)
            self._turns.append(kept)
            self._by_start.setdefault(kept.start, deque()).append(kept)
            self._size += _weight(turn)
            while self._size > self._bound:
                self._forget()

    def _forget(self) -> None:
        oldest = self._turns.popleft()
        self._size -= _weight(oldest.turn)
        alike = self._by_start[oldest.start]
        alike.popleft()
        if not alike:
            del self._by_start[oldest.start]

    def _spoken(self, form: ModelFormat, owner: str, prompt: RenderedPrompt) -> RenderedPrompt:
        whole = _packed(prompt.tokens)
        best: _Passage | None = None
        for kept in self._candidates(_starts(form, owner, prompt.tokens)):
            passage = kept.passage
            if passage and whole.startswith(passage.laid) and (best is None or len(best.laid) < len(passage.laid)):
                best = passage
        if best is None:
            return prompt
        return msgspec.structs.replace(prompt, tokens=tuple(array("I", best.spoken + whole[len(best.laid) :])))

    def _candidates(self, starts: "list[_Start]") -> list["_Kept"]:
        """Turns whose prompt began so, but for what stood behind its last message; the latest first."""
        with self._lock:
            begun = (self._by_start.get(start, ()) for start in starts)
            latest = [kept for alike in begun for kept in islice(reversed(alike), COMPARED)]
        return nlargest(COMPARED, latest, key=lambda kept: kept.number)


class _Kept:
    """The `number`-th turn that is remembered. Who holds one may go on using it while others forget it."""

    def __init__(self, turn: Spoken, start: "_Start", number: int) -> None:
        self.turn, self.start, self.number = turn, start, number

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
        laid = form.render_prompt(after, now=layout.now, owner=layout.owner).tokens
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


def _starts(form: ModelFormat, owner: str, tokens: Sequence[int]) -> "list[_Start]":
    """A text up to the end of each of its messages, which are few: so turns are found, however many are remembered."""
    packed, digest, done = memoryview(array("I", tokens)), blake2b(digest_size=16), 0
    starts = []
    for end in sorted(place for token in form.end_ids for place in _places(tokens, token)):
        digest.update(packed[done : end + 1])
        done = end + 1
        starts.append((owner, id(form), digest.digest()))
    return starts


def _places(tokens: Sequence[int], token: int) -> Iterator[int]:
    place = -1
    with suppress(ValueError):
        while True:
            place = tokens.index(token, place + 1)
            yield place


def _squeezed(form: ModelFormat, tokens: Sequence[int]) -> str:
    return "".join(form.decode(tokens).split())


def _end(form: ModelFormat, tokens: Sequence[int]) -> int:
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
