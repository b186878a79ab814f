"""Journals for tests."""

from collections.abc import Sequence

import msgspec

from antiphon.app.turns.continuation.journal import mark_input
from antiphon.app.turns.core.inputs import StepInput
from antiphon.app.turns.core.rounds import Round


def encode_steps(inputs: Sequence[StepInput], current: Round | None = None) -> bytes:
    """Returns a journal as it is stored. `current` is the round before a `RoundInput`."""
    return msgspec.msgpack.encode([mark_input(each, current) for each in inputs])  # type: ignore[arg-type] # only one with a prompt reads it
