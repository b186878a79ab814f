"""Records of turns as rows of a store. The store has the events with their details anyway, so a row has the rest."""

from collections.abc import Callable

import msgspec
import structlog
import zstandard
from msgspec import Struct

from antiphon.app.inspection.prompt_blocks import decompress
from antiphon.app.inspection.record import PackedRound, PackedTurn, RoundRecord, TurnRecord
from antiphon.app.turn_types.continuation import RecordRow
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import TurnStats

_logger = structlog.get_logger(__name__)


class UnreadableRecordError(Exception):
    """The row of a record cannot be decoded, because the database was damaged."""


class _RoundRow(Struct, frozen=True, array_like=True):
    round: RoundRecord
    num_blocks: int
    """Number of blocks of the prompt, which come before that of the grammar."""
    has_grammar: bool


class _TurnRow(Struct, frozen=True, array_like=True):
    dialect: str
    request: bytes
    rounds: tuple[_RoundRow, ...]
    excerpt: str = ""
    """The last text of the user, shortened."""
    head: bytes = b""


class _ListedRow(Struct, frozen=True, array_like=True):
    """The part of a row that a list shows. What is large stays encoded."""

    dialect: str
    request: msgspec.Raw
    rounds: msgspec.Raw
    excerpt: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_TurnRow)
_listed_decoder = msgspec.msgpack.Decoder(_ListedRow)


def create_packer(record: TurnRecord) -> Callable[[], RecordRow | None]:
    """Returns a function that packs a record for the store. A record that cannot be packed keeps no step from it."""

    def pack() -> RecordRow | None:
        try:
            return pack_record(record)
        except Exception:  # the writer's transaction has the steps of all turns
            _logger.exception("a turn could not be recorded", response=record.id)
            return None

    return pack


def pack_record(record: TurnRecord) -> RecordRow:
    """Returns the row of a turn that has ended. It takes long: call it in a thread."""
    request, rounds = record.pack_parts()
    rows = tuple(_RoundRow(each.round, len(each.blocks) - each.has_grammar, each.has_grammar) for each in rounds)
    blocks = tuple(block for each in rounds for block in each.blocks)
    row = _TurnRow(record.dialect, request, rows, record.read_excerpt(), record.pack_head())
    return RecordRow(_encode(row), blocks)


def read_stored_excerpt(data: bytes) -> str:
    """Returns the excerpt of the request in the data of a row; empty if the row is damaged, or older than excerpts."""
    try:
        return _listed_decoder.decode(data).excerpt
    except (msgspec.DecodeError, RecursionError):
        return ""


def read_stored_request(data: bytes) -> bytes:
    """Returns the request in the data of a row. Raises `UnreadableRecordError`."""
    try:
        return decompress(_decoder.decode(data).request)
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        raise UnreadableRecordError(str(error)) from None


def unpack_record(log: EventLog, stats: TurnStats, row: RecordRow) -> TurnRecord:
    """Returns the record in a row. `log` is that of the store. Raises `UnreadableRecordError`."""
    try:
        turn = _decoder.decode(row.data)
        rounds, start = [], 0
        for each in turn.rounds:
            end = start + each.num_blocks + each.has_grammar
            rounds.append(PackedRound(round=each.round, blocks=row.blocks[start:end], has_grammar=each.has_grammar))
            start = end
        if start > len(row.blocks):
            raise UnreadableRecordError(f"{len(row.blocks)} of {start} blocks")
        record = TurnRecord.from_packed(
            *(log, stats, turn.dialect),
            PackedTurn(entries=b"", request=turn.request, rounds=tuple(rounds), head=turn.head),
            turn.excerpt,
        )
        record.read_request()
        record.read_head()
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        raise UnreadableRecordError(str(error)) from None
    return record
