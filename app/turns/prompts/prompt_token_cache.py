"""The token ids that a model generated, for later requests that resend the output as items.

A chat template renders output in its own way: other token boundaries in the same text, other white space in the
arguments of a call. The engine's prefix cache contains only the generated ids, so a prompt that repeats a turn of this
server gets that turn's ids in place of the rendered ones. Example (ids): the model read 1 2 and generated 7 8, but the
template renders that turn as 1 2 9; a later prompt 1 2 9 5 becomes 1 2 7 8 5. The ids are replaced only if the resent
items render exactly like the items that were sent, so a client that edits the text gets an answer to the edited text.

Pure except for the lock: rendering happens in threads.
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
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.app.errors import ApiError
from antiphon.app.requests.responses.input_items import read_item
from antiphon.app.turn_types.turn_prompt import PrefixKey, TurnPrompt
from antiphon.events.base import InputItem
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.rendered_prompt import RenderedPrompt, RenderError

MAX_OMITTED_TOKENS = 32
"""Maximum number of tokens at the end of a prompt that history omits: the start of the answer, empty reasoning."""
TURN_OVERHEAD_TOKENS = 256
"""Fixed memory of a remembered turn, expressed as a number of tokens (measured)."""
BYTES_PER_TOKEN = 8
"""Memory of a remembered token, by which the bytes of a request are counted as tokens."""
MAX_COMPARED_TURNS = 8
"""Maximum number of turns that are rendered again and compared for one prompt, the latest first."""


class FinishedTurn(Struct, frozen=True):
    """A prompt, the tokens that the model generated for it, and the output items made of them."""

    turn_prompt: TurnPrompt
    generated_tokens: tuple[int, ...]
    output: tuple[OutputItem | AnyInput, ...]
    """The items that the model wrote. Calls that the server ran are input items, which have no output yet."""
    request_bytes: int = 0
    """Size of the request's echo as JSON: tools count, whether they were rendered or not."""
    response_id: str = ""
    settings: dict[str, Any] = {}
    """Settings that the prompt depends on besides its conversation, for comparisons with later prompts."""


class _ReplayPrefix(Struct, frozen=True):
    """Replaces the start `rendered` of a prompt by `original`, the ids that the model really read and generated.

    Both are bytes, which compare fast.
    """

    rendered: bytes
    original: bytes


class PromptTokenCache:
    """Remembers the latest turns of all owners, within the memory of `bound` tokens in total."""

    def __init__(self, bound: int = 2_000_000) -> None:
        self._bound = bound
        self.num_tokens = 0
        """Tokens that count for `bound`: those of the turns, and a fixed number for each."""
        self._count = 0
        self.turns: deque[_HistoryEntry] = deque()
        """The remembered turns, oldest first."""
        self.by_start: dict[PrefixKey, deque[_HistoryEntry]] = {}
        """The same turns by their first tokens, without empty queues."""
        self._by_id: dict[tuple[str, str], FinishedTurn] = {}
        self._lock = threading.Lock()

    def render(self, form: ModelFormat, owner: str, conversation: PromptInput, now: datetime) -> TurnPrompt:
        """Renders a conversation. Turns that were generated for this owner keep their generated ids.

        Raises `harmony.format.RenderError`.
        """
        prompt = form.render_prompt(conversation, now=now, owner=owner)
        starts = _prefix_keys(form, owner, prompt.tokens)
        return TurnPrompt(
            format=form,
            owner=owner,
            prompt_input=conversation,
            now=now,
            rendered_tokens=prompt.tokens,
            prompt=self._replay_original(form, starts, prompt),
            start=starts[-1] if starts else None,
        )

    def add_turn(self, turn: FinishedTurn) -> None:
        """Remembers a turn and evicts the oldest ones. Takes the same time for every length."""
        start = turn.turn_prompt.start
        if start is None or not (turn.generated_tokens or turn.response_id):
            return
        with self._lock:
            self._count += 1
            entry = _HistoryEntry(turn, start, self._count)
            self.turns.append(entry)
            self._by_id[turn.turn_prompt.owner, turn.response_id] = turn
            if turn.generated_tokens:  # a prefill can be compared, and has nothing to replay
                self.by_start.setdefault(entry.start, deque()).append(entry)
            self.num_tokens += _size_tokens(turn)
            while self.num_tokens > self._bound:
                self._evict_oldest()

    def find_turn(self, owner: str, response_id: str) -> FinishedTurn | None:
        """Returns the remembered turn of this owner's response; None if there is none."""
        with self._lock:
            return self._by_id.get((owner, response_id))

    def _evict_oldest(self) -> None:
        oldest = self.turns.popleft()
        self.num_tokens -= _size_tokens(oldest.turn)
        self._by_id.pop((oldest.turn.turn_prompt.owner, oldest.turn.response_id), None)
        if not oldest.turn.generated_tokens:
            return
        same_start = self.by_start[oldest.start]
        same_start.popleft()
        if not same_start:
            del self.by_start[oldest.start]

    def _replay_original(self, form: ModelFormat, starts: list[PrefixKey], prompt: RenderedPrompt) -> RenderedPrompt:
        if prompt.texts:
            return prompt  # the engine takes text
        packed = _pack_ids(prompt.tokens)
        best: _ReplayPrefix | None = None
        for entry in self._find_candidates(starts):
            prefix = entry.replay_prefix
            if (
                prefix
                and packed.startswith(prefix.rendered)
                and (best is None or len(best.rendered) < len(prefix.rendered))
            ):
                best = prefix
        if best is None:
            return prompt
        tokens = tuple(array("I", best.original + packed[len(best.rendered) :]))
        try:  # generated ids have another number of tokens than rendered ones
            media = form.find_images(tokens, prompt.media)
        except RenderError:  # an engine on another server has generated a token that stands for a picture
            return prompt
        return msgspec.structs.replace(prompt, tokens=tokens, media=media)

    def _find_candidates(self, starts: list[PrefixKey]) -> list["_HistoryEntry"]:
        """Returns turns whose prompt, up to the end of its last message, has one of these keys; the latest first."""
        with self._lock:
            queues = (self.by_start.get(start, ()) for start in starts)
            latest = [entry for entries in queues for entry in islice(reversed(entries), MAX_COMPARED_TURNS)]
        return nlargest(MAX_COMPARED_TURNS, latest, key=lambda entry: entry.number)


class _HistoryEntry:
    """The `number`-th remembered turn. A thread can still use it after another thread has evicted it."""

    def __init__(self, turn: FinishedTurn, start: PrefixKey, number: int) -> None:
        self.turn, self.start, self.number = turn, start, number

    @cached_property
    def replay_prefix(self) -> "_ReplayPrefix | None":
        """Replay prefix, computed at the first use, not at the end of the turn: most turns are never continued."""
        return _compare_renderings(self.turn)


def to_input(items: Sequence[OutputItem | AnyInput]) -> tuple[AnyInput, ...]:
    """Returns output items as a client sends them back. Raises `ApiError` for one that no client may send."""
    return tuple(
        item if isinstance(item, InputItem) else read_item(msgspec.to_builtins(item), "output") for item in items
    )


def _compare_renderings(turn: FinishedTurn) -> _ReplayPrefix | None:
    """Compares the turn as history renders it with the turn as generated. Returns None if their texts differ."""
    prompt, form = turn.turn_prompt, turn.turn_prompt.format
    generated = turn.generated_tokens[:-1] if turn.generated_tokens[-1] in form.end_ids else turn.generated_tokens
    try:
        resent = to_input(turn.output)
        next_input = msgspec.structs.replace(prompt.prompt_input, items=(*prompt.prompt_input.items, *resent))
        rendered = form.render_prompt(next_input, now=prompt.now, owner=prompt.owner).tokens
    except (ApiError, RenderError):
        return None
    shared, end = common_length(rendered, prompt.rendered_tokens), _last_message_end(form, rendered)
    if len(prompt.rendered_tokens) - shared > MAX_OMITTED_TOKENS or end <= shared:
        return None
    # They differ if history drops reasoning, clips text, or writes a header in another order.
    if _text_without_whitespace(form, rendered[shared:end]) != _text_without_whitespace(form, generated):
        return None
    # The end token is the one of history: a final answer may have ended with another one, a stopped turn with none.
    return _ReplayPrefix(_pack_ids(rendered[: end + 1]), _pack_ids((*prompt.prompt.tokens, *generated, rendered[end])))


def _prefix_keys(form: ModelFormat, owner: str, tokens: Sequence[int]) -> list[PrefixKey]:
    """Returns a key for the tokens up to the end of each message, by which turns are found without a search.

    Messages are few, so the number of keys does not depend on the number of remembered turns.
    """
    packed, digest, hashed = memoryview(array("I", tokens)), blake2b(digest_size=16), 0
    keys = []
    for end in sorted(position for token in form.end_ids for position in _find_token(tokens, token)):
        digest.update(packed[hashed : end + 1])
        hashed = end + 1
        keys.append((owner, id(form), digest.digest()))
    return keys


def _find_token(tokens: Sequence[int], token: int) -> Iterator[int]:
    position = -1
    with suppress(ValueError):
        while True:
            position = tokens.index(token, position + 1)
            yield position


def _text_without_whitespace(form: ModelFormat, tokens: Sequence[int]) -> str:
    return "".join(form.decode(tokens).split())


def _last_message_end(form: ModelFormat, tokens: Sequence[int]) -> int:
    """Returns the position of the last message's end token; -1 if there is none."""
    return next((position for position in reversed(range(len(tokens))) if tokens[position] in form.end_ids), -1)


def common_length(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    """Returns the length of the common prefix. Slices are compared: a loop over the tokens of a prompt takes long."""
    low, high = 0, min(len(tokens), len(others))
    if tokens[:high] == others[:high]:
        return high
    while high - low > 1:  # the first difference is in this range
        middle = (low + high) // 2
        if tokens[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _size_tokens(turn: FinishedTurn) -> int:
    num_tokens = 2 * len(turn.turn_prompt.rendered_tokens) + len(turn.generated_tokens)
    return TURN_OVERHEAD_TOKENS + num_tokens + turn.request_bytes // BYTES_PER_TOKEN


def _pack_ids(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()
