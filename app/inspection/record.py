"""The record of a turn: what the model read and wrote, step by step, kept for the people who look at it.

A record of a running turn refers to its log. Once the turn has ended, the record is packed: its entries become one
compressed block, and its prompts blocks of ids that turns of one conversation share.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zstandard
from msgspec import Struct, structs

from antiphon.app.base.event_log import EventLog, LogEntry
from antiphon.app.base.step_detail import TokenDetail
from antiphon.app.base.turn_stats import TurnStats
from antiphon.app.inspection.prompt_blocks import PromptBlock, join_blocks, split_prompt
from antiphon.events import stream as ev

MAX_REQUEST_BYTES = 1 << 20
"""Size of the request that a record keeps. Of a longer one, it keeps none."""
MAX_GRAMMAR_CHARS = 1 << 20
"""Length of the grammar that a record keeps."""
RECORD_BYTES = 2048
"""Memory of a record besides its packed parts (measured)."""
_COMPRESSION_LEVEL = 1

_encode = msgspec.msgpack.Encoder().encode
_entries_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, TokenDetail | None]])


class RoundRecord(Struct, frozen=True, kw_only=True):
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
    grammar: str = ""
    """Grammar of the output; empty if there is none, or if it is too long."""

    def compare_prompts(self) -> "RoundRecord":
        """Returns the round with the restored range, which takes as long as the prompt."""
        return structs.replace(self, rendered=(), restored=find_restored(self.rendered, self.prompt))


class PackedRound(Struct, frozen=True, kw_only=True):
    """A round whose prompt is in blocks. `round` has no ids."""

    round: RoundRecord
    blocks: tuple[PromptBlock, ...]


class PackedTurn(Struct, frozen=True, kw_only=True):
    """The parts of a turn that has ended, compressed."""

    entries: bytes
    request: bytes
    rounds: tuple[PackedRound, ...]

    @property
    def num_bytes(self) -> int:
        """Memory of the parts, without the blocks of the prompts, which other turns may share."""
        grammars = sum(len(each.round.grammar) for each in self.rounds)
        num_blocks = sum(len(each.blocks) for each in self.rounds)
        return RECORD_BYTES + len(self.entries) + len(self.request) + grammars + 100 * num_blocks


class TurnRecord:
    """The record of one turn.

    `request` is the body as it came, which is kept as `redact` returns it, unless it is too long. `list_rounds` returns
    the rounds so far.
    """

    def __init__(
        self,
        log: EventLog,
        stats: TurnStats,
        *,
        dialect: str,
        request: bytes,
        redact: Callable[[bytes], bytes],
        list_rounds: Callable[[], list[RoundRecord]],
    ) -> None:
        self.owner, self.id, self.stats = log.owner, log.id, stats
        self.background = log.base_response.background
        self.dialect = dialect
        """Name of the model's dialect."""
        self._log: EventLog | None = log
        self._request = request if len(request) <= MAX_REQUEST_BYTES else b""
        self._redact, self._list_rounds = redact, list_rounds
        self.packed: PackedTurn | None = None
        """The parts of a turn that has ended; None until they are packed."""

    @property
    def is_running(self) -> bool:
        """True until the turn has ended."""
        return self.stats.times.ended is None

    def pack(self) -> PackedTurn:
        """Returns the parts of a turn that has ended. It takes long: call it in a thread."""
        log = self._log
        assert log is not None
        rounds = tuple(
            PackedRound(
                round=structs.replace(each.compare_prompts(), prompt=()), blocks=split_prompt(log.owner, each.prompt)
            )
            for each in self._list_rounds()
        )
        entries = _encode([(entry.data, entry.detail) for entry in log.entries])
        return PackedTurn(entries=_compress(entries), request=_compress(self._redact(self._request)), rounds=rounds)

    def finish_packing(self, packed: PackedTurn) -> None:
        """Replaces the log by its packed parts."""
        self.packed = packed
        self._log, self._request, self._list_rounds = None, b"", list

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
        return zstandard.ZstdDecompressor().decompress(self.packed.request)

    def count_tokens(self) -> tuple[int, int, int]:
        """Returns the numbers of input, cached and output tokens of a turn that runs, so far."""
        rounds = self._list_rounds()
        num_prompt, num_cached = sum(len(each.prompt) for each in rounds), sum(each.cached_tokens for each in rounds)
        return num_prompt, num_cached, sum(each.output_tokens for each in rounds)

    def read_rounds(self) -> list[RoundRecord]:
        """Returns the rounds with their prompts. It takes long: call it in a thread."""
        if self.packed is None:
            return [each.compare_prompts() for each in self._list_rounds()]
        return [
            structs.replace(each.round, prompt=join_blocks([block.ids for block in each.blocks]))
            for each in self.packed.rounds
        ]


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


def _compress(data: bytes) -> bytes:
    """Returns the data compressed, in a copy: what zstandard returns keeps the memory that it might have needed."""
    return bytes(memoryview(zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(data)))


def unpack_log(owner: str, packed: bytes) -> EventLog:
    """Returns the log whose entries were packed, as one that has ended."""
    entries = [
        LogEntry(ev.decode_event(data), data, detail)
        for data, detail in _entries_decoder.decode(zstandard.ZstdDecompressor().decompress(packed))
    ]
    first = entries[0].event
    assert isinstance(first, ev.LifecycleEvent)
    log = EventLog(first.response, owner)
    log.add_stored(entries)
    log.end_log()
    return log
