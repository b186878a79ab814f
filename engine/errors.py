"""Engine errors that are not part of its protocol, and the one-line form of an exception for logs."""

from collections.abc import Iterable

from antiphon.engine.protocol import EngineError


class LoadError(EngineError):
    """The model cannot be served; the message is one line and ends with the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__("model_not_loadable", " ".join(message.split()))


def show_shape(shape: Iterable[int]) -> str:
    """Returns the shape of a tensor as messages write it."""
    return " x ".join(map(str, shape))


def one_line(failure: Exception) -> str:
    """Returns the exception's class name and the first line of its message."""
    return f"{type(failure).__name__}: {failure}".splitlines()[0]
