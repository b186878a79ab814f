"""Journals for tests."""

from collections.abc import Sequence

import msgspec

from antiphon.app.turns.continuation.journal import prepare_inputs
from antiphon.app.turns.core.inputs import StepInput


def encode_steps(inputs: Sequence[StepInput]) -> bytes:
    """Returns a journal as it is stored."""
    return msgspec.msgpack.encode(prepare_inputs(inputs))
