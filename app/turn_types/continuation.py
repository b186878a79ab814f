"""Data of a turn that the store keeps besides its events: for its continuation in another process, and its record."""

from msgspec import Struct


class Continuation(Struct, frozen=True, kw_only=True):
    """The part of a turn that another process needs to continue it: see `app.turns.continuation`."""

    model: str
    digest: str
    """Digest of the files of the model, which must be the same there."""
    data: bytes


class RecordBlock(Struct, frozen=True):
    """Content that records of one owner share, kept once: ids of a prompt, or a grammar."""

    key: bytes
    """16 bytes that stand for the owner and the content; for ids of a prompt, also for all ids before them."""
    data: bytes


class RecordRow(Struct, frozen=True):
    """The record of a turn, as it is stored: see `app.inspection.record_rows`."""

    data: bytes
    blocks: tuple[RecordBlock, ...]
