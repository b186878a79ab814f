"""Engine errors that are not part of its protocol, and the one-line form of an exception for logs."""

from collections.abc import Iterable

from antiphon.engine.protocol import EngineError


class LoadError(EngineError):
    """The model cannot be served; the message is one line and ends with the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__("model_not_loadable", " ".join(message.split()))


OUT_OF_MEMORY_TEXTS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Parts of messages of CUDA and cuBLAS, whose errors have no class of their own when memory runs out."""


def is_out_of_memory(failure: Exception) -> bool:
    """True if the failure says that main memory or the memory of a GPU ran out.

    The class of torch is compared by its name, since processes without torch read failures, too.
    """
    if isinstance(failure, MemoryError) or type(failure).__name__ == "OutOfMemoryError":
        return True
    return isinstance(failure, RuntimeError) and any(text in str(failure) for text in OUT_OF_MEMORY_TEXTS)


def refuse_out_of_memory(failure: Exception) -> None:
    """Raises `LoadError` if memory ran out, so that a test of a faster pass does not end with a slower pass instead."""
    if is_out_of_memory(failure):
        reason = one_line(failure).split(". ")[0]
        raise LoadError(f"memory ran out while the model was tested ({reason}); free some memory") from failure


def show_shape(shape: Iterable[int]) -> str:
    """Returns the shape of a tensor as messages write it."""
    return " x ".join(map(str, shape))


def one_line(failure: Exception) -> str:
    """Returns the exception's class name and the first line of its message."""
    return f"{type(failure).__name__}: {failure}".splitlines()[0]
