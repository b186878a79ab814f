"""The record of a turn: what the model read and wrote, step by step, kept for the people who look at it.

A record of a running turn refers to its log. Once the turn has ended, the record is packed: its entries become one
compressed block, and its prompts blocks of ids that turns of one conversation share.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from antiphon.app.inspection.excerpts import find_excerpt
from antiphon.app.inspection.prompt_blocks import (
    compress,
    decompress,
    join_blocks,
    pack_grammar,
    split_prompt,
    unpack_grammar,
)
from antiphon.app.turn_types.continuation import RecordBlock
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turn_types.step_detail import TokenDetail
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.events import stream as ev
from antiphon.harmony.tools import ToolSpec, ToolTable

MAX_REQUEST_BYTES = 1 << 20
"""Size of the request that a record keeps. Of a longer one, it keeps none."""
MAX_KEPT_GRAMMAR_CHARS = 1 << 20
"""Length of the grammar that a record keeps."""
RECORD_BYTES = 2048
"""Memory of a record besides its packed parts (measured)."""

_encode = msgspec.msgpack.Encoder().encode
_tools_decoder = msgspec.json.Decoder(tuple[ToolSpec, ...])  # msgpack has no integers above 64 bits
_old_tools_decoder = msgspec.msgpack.Decoder(tuple[ToolSpec, ...])
_entries_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, TokenDetail | None, bytes]])


class RoundRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of the engine: its prompt and how it was sampled."""

    prompt: Sequence[int]
    """Ids as the engine got them."""
    rendered: Sequence[int] = ()
    """Ids as the template renders them; empty once the two were compared."""
    restored: tuple[int, int] = (0, 0)
    """Range of the ids that the model generated in earlier turns, where the template would render others."""
    cached_tokens: int = 0
    output_tokens: int = 0
    sampling: dict[str, Any] = {}
    """As used, with the seed that was drawn."""
    in_reasoning: bool = False
    """True if the answer begins inside reasoning, because the prompt ends there."""
    in_text: bool = False
    """True if the answer begins inside text for the user."""
    in_wrapper: bool = False
    """True if the answer begins behind the marker in front of text for the user."""
    grammar: str = ""
    """Grammar of the output; empty if there is none, or if it is too long."""
    offered: tuple[ToolSpec, ...] = ()
    """Tools of the prompt, in a turn whose tools the server runs; empty once they are packed."""
    tools: bytes = b""
    """The same, packed; empty if they are those of the round before."""
    may_call: bool = True
    """False if the model may call none of them."""
    num_tokens: int = 0
    """Length of the prompt in the engine, if it puts tokens of pictures into it; else 0."""

    def compare_prompts(self) -> "RoundRecord":
        """Returns the round with the restored range, which takes as long as the prompt."""
        return structs.replace(self, rendered=(), restored=find_restored(self.rendered, self.prompt))


class PackedRound(Struct, frozen=True, kw_only=True):
    """A round whose prompt and grammar are in blocks. `round` has neither."""

    round: RoundRecord
    blocks: tuple[RecordBlock, ...]
    """Ids of the prompt, then the grammar, if there is one."""
    has_grammar: bool

    def unpack(self) -> RoundRecord:
        """Returns the round with its prompt and its grammar."""
        parts = [each.data for each in self.blocks]
        grammar = unpack_grammar(parts.pop()) if self.has_grammar else ""
        return structs.replace(self.round, prompt=join_blocks(parts), grammar=grammar)


class PackedTurn(Struct, frozen=True, kw_only=True):
    """The parts of a turn that has ended, compressed."""

    entries: bytes
    """Empty if the log is elsewhere."""
    request: bytes
    rounds: tuple[PackedRound, ...]
    head: bytes = b""
    """The head of the turn: see `app.turns.continuation.turn_head`."""

    @property
    def num_bytes(self) -> int:
        """Memory of the parts, without the blocks, which other turns may share."""
        num_blocks = sum(len(each.blocks) for each in self.rounds)
        tools = sum(len(each.round.tools) for each in self.rounds)
        return RECORD_BYTES + len(self.entries) + len(self.request) + len(self.head) + tools + 100 * num_blocks


class TurnRecord:
    """The record of one turn.

    `request` is the body as it came, which is kept as `redact` returns it, unless it is too long. `list_rounds` returns
    the rounds so far, `encode_head` the head of the turn.
    """

    def __init__(
        self,
        log: EventLog,
        stats: TurnStats,
        *,
        dialect: str,
        request: bytes = b"",
        redact: Callable[[bytes], bytes] = lambda body: body,
        list_rounds: Callable[[], list[RoundRecord]] = list,
        encode_head: Callable[[], bytes] = bytes,
    ) -> None:
        self.owner, self.id, self.stats = log.owner, log.id, stats
        self.background = log.base_response.background
        self.dialect = dialect
        """Name of the model's dialect."""
        self.stored_log: EventLog | None = None
        """The log, if the store writes this record with its last step."""
        self._log: EventLog | None = log
        self._request = request if len(request) <= MAX_REQUEST_BYTES else b""
        self._redact, self._list_rounds, self._encode_head = redact, list_rounds, encode_head
        self._lock = threading.Lock()
        self._packed_request: bytes | None = None
        self._excerpt = ""
        self._packed_prompts: list[tuple[Sequence[int], PackedRound]] = []
        """Prompt of each round that is packed so far, and the round as it was then."""
        self.packed: PackedTurn | None = None
        """The parts of a turn that has ended; None until they are packed."""

    @property
    def is_running(self) -> bool:
        """True until the turn has ended."""
        return self.stats.times.ended is None

    def pack_parts(self) -> tuple[bytes, tuple[PackedRound, ...]]:
        """Returns the request and the rounds so far, packed. What was packed before is used again.

        It takes long: call it in a thread. Several threads may call it.
        """
        with self._lock:
            packed_request = self._pack_request()
            rounds, previous = [], b""
            for number, each in enumerate(self._list_rounds()):
                if number == len(self._packed_prompts):
                    self._packed_prompts.append((each.prompt, _pack_round(self.owner, each)))
                prompt, packed = self._packed_prompts[number]
                if prompt is not each.prompt:  # that of a compaction takes the place of the one before
                    packed = _pack_round(self.owner, each)
                    self._packed_prompts[number] = each.prompt, packed
                tools = b"" if packed.round.tools == previous else packed.round.tools
                previous = packed.round.tools
                changes: dict[str, Any] = {"tools": tools}
                changes |= {"cached_tokens": each.cached_tokens, "output_tokens": each.output_tokens}
                rounds.append(structs.replace(packed, round=structs.replace(packed.round, **changes)))
            return packed_request, tuple(rounds)

    def _pack_request(self) -> bytes:
        """Returns the request, packed. It is called with the lock."""
        if self._packed_request is None:
            request = self._redact(self._request)
            self._packed_request, self._excerpt = compress(request), find_excerpt(request)
        return self._packed_request

    def read_excerpt(self) -> str:
        """Returns the last text of the user, shortened. It may take long: call it in a thread."""
        with self._lock:
            if self.packed is None:
                self._pack_request()
            return self._excerpt

    def pack(self) -> PackedTurn:
        """Returns the parts of a turn that has ended. It takes long: call it in a thread."""
        log = self._log
        assert log is not None
        request, rounds = self.pack_parts()
        entries = _encode([(entry.data, entry.detail, entry.encode_journal()) for entry in log.entries])
        return PackedTurn(entries=compress(entries), request=request, rounds=rounds, head=self.pack_head())

    def finish_packing(self, packed: PackedTurn) -> None:
        """Replaces the log by its packed parts."""
        with self._lock:
            self.packed = packed
            self._log, self._request, self._list_rounds, self._encode_head = None, b"", list, bytes
            self._packed_request, self._packed_prompts = None, []

    @classmethod
    def from_packed(
        cls, log: EventLog, stats: TurnStats, dialect: str, packed: PackedTurn, excerpt: str
    ) -> "TurnRecord":
        """Returns the record of a turn whose log is elsewhere."""
        record = cls(log, stats, dialect=dialect)
        record.packed, record._excerpt = packed, excerpt
        return record

    def open_log(self) -> EventLog:
        """Returns the log: that of a running turn, or a new one with the entries that were kept."""
        if self._log is not None:
            return self._log
        assert self.packed is not None
        return unpack_log(self.owner, self.packed.entries)

    def read_request(self) -> bytes:
        """Returns the body of the request without secrets; empty if it was too long."""
        if self.packed is None:
            return self._redact(self._request)
        return decompress(self.packed.request)

    def pack_head(self) -> bytes:
        """Returns the head of the turn, packed. It takes long: call it in a thread."""
        return compress(self._encode_head())

    def read_head(self) -> bytes:
        """Returns the head of the turn; empty if it was not kept."""
        if self.packed is None:
            return self._encode_head()
        return decompress(self.packed.head) if self.packed.head else b""

    def count_tokens(self) -> tuple[int, int, int]:
        """Returns the numbers of input, cached and output tokens of a turn that runs, so far."""
        rounds = self._list_rounds()
        num_prompt, num_cached = sum(len(each.prompt) for each in rounds), sum(each.cached_tokens for each in rounds)
        return num_prompt, num_cached, sum(each.output_tokens for each in rounds)

    def read_rounds(self) -> list[RoundRecord]:
        """Returns the rounds with their prompts. It takes long: call it in a thread."""
        if self.packed is None:
            return [each.compare_prompts() for each in self._list_rounds()]
        return [each.unpack() for each in self.packed.rounds]


def _pack_round(owner: str, each: RoundRecord) -> PackedRound:
    grammar = (pack_grammar(owner, each.grammar),) if each.grammar else ()
    return PackedRound(
        round=structs.replace(
            each.compare_prompts(),
            prompt=(),
            grammar="",
            offered=(),
            tools=compress(msgspec.json.encode(each.offered)) if each.offered else b"",
        ),
        blocks=split_prompt(owner, each.prompt) + grammar,
        has_grammar=bool(grammar),
    )


def list_tool_tables(rounds: Sequence[RoundRecord]) -> list[ToolTable | None]:
    """Returns the tools of each round, in a turn whose tools the server runs; None for those of the request."""
    tables: list[ToolTable | None] = []
    for each in rounds:
        offered = _decode_tools(decompress(each.tools)) if each.tools else each.offered
        tables.append(ToolTable(offered) if offered else tables[-1] if tables else None)
    return tables


def _decode_tools(data: bytes) -> tuple[ToolSpec, ...]:
    """Returns the tools of a round. Rows of earlier versions have them as msgpack."""
    decoder = _tools_decoder if data.startswith(b"[") else _old_tools_decoder
    return decoder.decode(data)


def find_restored(rendered: Sequence[int], prompt: Sequence[int]) -> tuple[int, int]:
    """Returns the range of a prompt's ids that differ from those that the template renders.

    Example: the template renders 1 2 9 5, and the prompt is 1 2 7 8 5. The range is (2, 4).
    """
    if rendered is prompt or not rendered:
        return (0, 0)
    shortest = min(len(rendered), len(prompt))
    start = next((index for index in range(shortest) if rendered[index] != prompt[index]), shortest)
    if start == len(rendered) == len(prompt):
        return (0, 0)
    end = 0
    while end < shortest - start and rendered[-1 - end] == prompt[-1 - end]:
        end += 1
    return (start, len(prompt) - end)


def unpack_log(owner: str, packed: bytes) -> EventLog:
    """Returns the log whose entries were packed, as one that has ended."""
    entries = [
        LogEntry(ev.decode_event(data), data, detail, journal)
        for data, detail, journal in _entries_decoder.decode(decompress(packed))
    ]
    first = entries[0].event
    assert isinstance(first, ev.LifecycleEvent)
    log = EventLog(first.response, owner)
    log.add_stored(entries)
    log.end_log()
    return log
