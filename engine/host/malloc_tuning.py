"""The C heap of this process. Needs no torch."""

import contextlib
import ctypes
from collections.abc import Iterator

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""

LOADING_BLOCK_BYTES = 1 << 20
"""Size of a block from which on it is mapped on its own while a model is loaded, and in a front end."""

SERVING_BLOCK_BYTES = 32 << 20
"""The same when it is loaded: the largest size that glibc itself chooses in time, since mapping costs page faults."""


def return_freed_memory() -> None:
    """Gives freed memory of the C heap back to the operating system. Does nothing if the C library is not glibc.

    glibc otherwise keeps blocks between others that are still in use, and counts them as the process's.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_large_blocks_mapped() -> None:
    """From now on, glibc maps large blocks on their own. For processes that handle requests and compute nothing.

    glibc itself maps fewer and fewer blocks: after the first large body is freed, the next ones lie on the heap, where
    smaller objects keep the holes that they leave.
    """
    _set_parameter(M_MMAP_THRESHOLD, LOADING_BLOCK_BYTES)


@contextlib.contextmanager
def map_large_blocks() -> Iterator[None]:
    """Within this context, glibc maps large blocks on their own, and gives them back when they are freed.

    On the heap, each would leave a hole of its size below the blocks that were allocated after it.
    """
    _set_parameter(M_MMAP_THRESHOLD, LOADING_BLOCK_BYTES)
    try:
        yield
    finally:
        _set_parameter(M_MMAP_THRESHOLD, SERVING_BLOCK_BYTES)
        _set_parameter(M_TRIM_THRESHOLD, 2 * SERVING_BLOCK_BYTES)


def _set_parameter(name: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(name, value)
