"""Changes to test processes that start servers: shared TLS contexts and signatures, and a check of how turns end."""

import functools
import ssl
from typing import Any

from antiphon.app.turns.manager import TurnManager
from antiphon.app.turns.turn import Turn
from tests.route_signatures import share_signatures

turns_without_ending: list[str] = []
"""Responses whose turns have ended without a cause in this process. `tests/conftest.py` fails the session for each."""

create_default_context = ssl.create_default_context
on_turn_end = TurnManager._on_turn_end


@functools.cache
def create_context_once(cafile: str) -> ssl.SSLContext:
    return create_default_context(cafile=cafile)


def create_shared_context(*args: Any, **options: Any) -> ssl.SSLContext:
    """Creates a TLS context, or returns the one with the same root certificates.

    Reading them takes longer than a request over loopback, and HTTP clients read them even for a plain `http:` URL.
    """
    is_shared = not args and options.keys() == {"cafile"}
    return create_context_once(**options) if is_shared else create_default_context(*args, **options)


def check_ending(manager: TurnManager, model: Any, turn: Turn, *parts: Any) -> None:
    """Notes a turn that ends without a cause, whichever test it belongs to."""
    if turn.stats.ending is None or turn.stats.times.ended is None:
        turns_without_ending.append(turn.log.id)
    on_turn_end(manager, model, turn, *parts)


@functools.cache
def prepare_process() -> None:
    """Makes the changes, once. `tests.serving` calls it when it is imported."""
    ssl.create_default_context = create_shared_context
    TurnManager._on_turn_end = check_ending  # type: ignore[method-assign]
    share_signatures()
