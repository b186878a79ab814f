"""The C heap of this process. Needs no torch."""

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Gives freed memory of the C heap back to the operating system. Does nothing if the C library is not glibc.

    glibc otherwise keeps blocks between others that are still in use, and counts them as the process's.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
