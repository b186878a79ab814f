"""Errors of the engine beside those of its protocol, and their one-line form for logs."""

from antiphon.engine.protocol import EngineError


class LoadError(EngineError):
    """The model cannot be served; the message is one line and ends with the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__("model_not_loadable", " ".join(message.split()))


def one_line(failure: Exception) -> str:
    """Its kind, and the first line of its message."""
    return f"{type(failure).__name__}: {failure}".splitlines()[0]
