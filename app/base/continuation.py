"""The data with which a response goes on in another process."""

from msgspec import Struct


class Continuation(Struct, frozen=True, kw_only=True):
    """The part of a turn that another process needs to go on with it: see `app.turns.continuation`."""

    model: str
    digest: str
    """Digest of the files of the model, which must be the same there."""
    data: bytes
