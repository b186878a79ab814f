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

MIN_PREFILL_TOKENS = 32
"""Tokens that a prompt may end with and history does not show: the opener of the answer, an empty thought."""
MAX_TURNS_PER_OWNER = 256
"""A turn of few tokens takes as much memory as so many of them, measured."""
MAX_COMPARED_TURNS = 8
"""At most so many turns are laid out anew for one prompt, the latest ones first."""


class TurnPrompt(Struct, frozen=True, kw_only=True):
    """A conversation laid out for a model."""

    format: ModelFormat
    owner: str
    prompt_input: PromptInput
    now: datetime
    """Templates write the date."""
    rendered_tokens: tuple[int, ...]
    """The prompt as the template lays it out."""
    prompt: RenderedPrompt
    """The prompt as the model reads it."""
    grammar: str | None = None
    """What the answer is held to."""


class FinishedTurn(Struct, frozen=True):
    """What a model spoke after a prompt, and the items that were heard."""

    turn_prompt: TurnPrompt
    generated_tokens: tuple[int, ...]
    output: tuple[OutputItem, ...]


class _ReplayPrefix(Struct, frozen=True):
    """Where a layout begins with `laid`, the model had read and spoken `spoken`; both as bytes, which compare fast."""

    rendered: bytes
    original: bytes


_PrefixKey = tuple[str, int, bytes]
"""Whose text it is, for which format, and a digest of it. Formats that are remembered live: no id is another one's."""


class TokenHistory:
    """The latest turns, of all owners together at most `bound` tokens, or the memory of so many."""

    def __init__(self, bound: int = 2_000_000) -> None:
        self._bound = bound
        self._size = 0
        self._count = 0
        self._turns: deque[_HistoryEntry] = deque()
        self._by_start: dict[_PrefixKey, deque[_HistoryEntry]] = {}
        self._lock = threading.Lock()

    def render(self, form: ModelFormat, owner: str, conversation: PromptInput, now: datetime) -> TurnPrompt:
        """Lay a conversation out; what this owner's model has spoken of it stands there as it was spoken.

        Raises `harmony.format.RenderError`.
        """
        prompt = form.render_prompt(conversation, now=now, owner=owner)
        return TurnPrompt(
            format=form,
            owner=owner,
            prompt_input=conversation,
            now=now,
            rendered_tokens=prompt.tokens,
            prompt=self._replay_original(form, owner, prompt),
        )

    def add_turn(self, turn: FinishedTurn) -> None:
        """Keep a turn; the oldest ones are forgotten."""
        layout = turn.turn_prompt
        starts = _prefix_keys(layout.format, layout.owner, layout.rendered_tokens)
        if not turn.generated_tokens or not starts:
            return
        with self._lock:
            self._count += 1
            kept = _HistoryEntry(turn, starts[-1], self._count)
            self._turns.append(kept)
            self._by_start.setdefault(kept.start, deque()).append(kept)
            self._size += _size_tokens(turn)
            while self._size > self._bound:
                self._evict_oldest()

    def _evict_oldest(self) -> None:
        oldest = self._turns.popleft()
        self._size -= _size_tokens(oldest.turn)
        alike = self._by_start[oldest.start]
        alike.popleft()
        if not alike:
            del self._by_start[oldest.start]

    def _replay_original(self, form: ModelFormat, owner: str, prompt: RenderedPrompt) -> RenderedPrompt:
        whole = _pack_ids(prompt.tokens)
        best: _ReplayPrefix | None = None
        for kept in self._find_candidates(_prefix_keys(form, owner, prompt.tokens)):
            passage = kept.replay_prefix
            if (
                passage
                and whole.startswith(passage.rendered)
                and (best is None or len(best.rendered) < len(passage.rendered))
            ):
                best = passage
        if best is None:
            return prompt
        return msgspec.structs.replace(prompt, tokens=tuple(array("I", best.original + whole[len(best.rendered) :])))

    def _find_candidates(self, starts: "list[_PrefixKey]") -> list["_HistoryEntry"]:
        """Turns whose prompt began so, but for what stood behind its last message; the latest first."""
        with self._lock:
            begun = (self._by_start.get(start, ()) for start in starts)
            latest = [kept for alike in begun for kept in islice(reversed(alike), MAX_COMPARED_TURNS)]
        return nlargest(MAX_COMPARED_TURNS, latest, key=lambda kept: kept.number)


class _HistoryEntry:
    """The `number`-th turn that is remembered. Who holds one may go on using it while others forget it."""

    def __init__(self, turn: FinishedTurn, start: "_PrefixKey", number: int) -> None:
        self.turn, self.start, self.number = turn, start, number

    @cached_property
    def replay_prefix(self) -> "_ReplayPrefix | None":
        """Laid out at the first question, not at the end of the turn: most turns are never followed."""
        return _compare_renderings(self.turn)


def _compare_renderings(turn: FinishedTurn) -> _ReplayPrefix | None:
    """The turn as history lays it out beside the turn as it was; None where the two do not say the same."""
    layout, form = turn.turn_prompt, turn.turn_prompt.format
    spoken = turn.generated_tokens[:-1] if turn.generated_tokens[-1] in form.end_ids else turn.generated_tokens
    try:
        back = [read_item(msgspec.to_builtins(item), "output") for item in turn.output]
        after = msgspec.structs.replace(layout.prompt_input, items=(*layout.prompt_input.items, *back))
        laid = form.render_prompt(after, now=layout.now, owner=layout.owner).tokens
    except (ApiError, RenderError):
        return None
    shared, end = _common_length(laid, layout.rendered_tokens), _last_message_end(form, laid)
    if len(layout.rendered_tokens) - shared > MIN_PREFILL_TOKENS or end <= shared:
        return None
    # Reasoning that history drops, text that it clips, another order of a header: then history has its own words.
    if _strip_end_ids(form, laid[shared:end]) != _strip_end_ids(form, spoken):
        return None
    # The end is history's: a final answer may have ended otherwise, a turn that was stopped has none.
    return _ReplayPrefix(_pack_ids(laid[: end + 1]), _pack_ids((*layout.prompt.tokens, *spoken, laid[end])))


def _prefix_keys(form: ModelFormat, owner: str, tokens: Sequence[int]) -> "list[_PrefixKey]":
    """A text up to the end of each of its messages, which are few: so turns are found, however many are remembered."""
    packed, digest, done = memoryview(array("I", tokens)), blake2b(digest_size=16), 0
    starts = []
    for end in sorted(place for token in form.end_ids for place in _find_token(tokens, token)):
        digest.update(packed[done : end + 1])
        done = end + 1
        starts.append((owner, id(form), digest.digest()))
    return starts


def _find_token(tokens: Sequence[int], token: int) -> Iterator[int]:
    place = -1
    with suppress(ValueError):
        while True:
            place = tokens.index(token, place + 1)
            yield place


def _strip_end_ids(form: ModelFormat, tokens: Sequence[int]) -> str:
    return "".join(form.decode(tokens).split())


def _last_message_end(form: ModelFormat, tokens: Sequence[int]) -> int:
    """Where the last message ends; -1 where none does."""
    return next((place for place in reversed(range(len(tokens))) if tokens[place] in form.end_ids), -1)


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _size_tokens(turn: FinishedTurn) -> int:
    return MAX_TURNS_PER_OWNER + 2 * len(turn.turn_prompt.rendered_tokens) + len(turn.generated_tokens)


def _pack_ids(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()
