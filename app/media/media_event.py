"""Events of prepared pictures and PDFs, for the metrics."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from antiphon.app.media.media_fault import MediaFault


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


@contextmanager
def observe_reading(kind: str, observe: Observe) -> Iterator[None]:
    """Reports what became of a picture or PDF that is read in the block."""
    started_s, result = time.monotonic(), "cancelled"
    try:
        yield
        result = "prepared"
    except MediaFault as fault:
        result = fault.code
        raise
    finally:
        observe(MediaEvent(kind=kind, result=result, elapsed_s=time.monotonic() - started_s))
