"""Events of a summary in progress."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    """An attempt has begun."""

    attempt: int


@dataclass(frozen=True)
class TextReceived:
    """Some text has come. It is void if the attempt fails."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The summary is there."""

    text: str
    is_complete: bool


@dataclass(frozen=True)
class Failed:
    """An attempt has failed."""

    attempt: int
    reason: str


ProgressEvent = Started | TextReceived | Finished | Failed
