"""Events of prepared pictures and PDFs, for the metrics."""

from collections.abc import Callable

from msgspec import Struct


class MediaEvent(Struct, frozen=True, kw_only=True):
    """A picture or PDF that a request needed."""

    kind: str
    """`image` or `pdf`."""
    result: str
    """`prepared`, `known` (it was not read again), `cancelled` (its clients had gone) or the code of a fault."""
    elapsed_s: float


Observe = Callable[[MediaEvent], None]


def ignore_event(_: MediaEvent) -> None:
    """Reports nothing."""
