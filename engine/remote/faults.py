"""Classifies an error of a remote engine: its cause, and whether another replica may be tried."""

import re
from collections.abc import Sequence

import msgspec

from antiphon.engine.protocol import EngineError, Fault
from antiphon.engine.remote.backend_apis.base import RemoteFailure

TOO_LONG = re.compile(r"maximum (model|context) length|context (size|length|window)|input.*too long", re.IGNORECASE)
BUSY = re.compile(r"\bbusy\b|queue is full|too many requests", re.IGNORECASE)
GRAMMAR_WORDS = re.compile(r"grammar|lark|gbnf|ebnf|guid(ed|ance)|structured|schema|regex|lexer", re.IGNORECASE)
MEDIA_WORDS = re.compile(r"image|multi.?modal|\bmm_|media|\bpng\b|pixel|placeholder|vision", re.IGNORECASE)
MEDIA_LIMIT = re.compile(r"at most (\d{1,6}) image", re.IGNORECASE)
QUOTED_CHARS = 40
"""Characters of a line of a grammar that a message must contain to count as a quotation."""
MAX_FAULT_MESSAGE_CHARS = 500
HIDDEN_KEY = "[key]"
STREAM_BROKEN = Fault("engine_unavailable", "the engine stopped in the middle of the output", retryable=True)
GRAMMAR_LEFT = Fault("server_error", "the engine left the grammar it was given")


class FailedAttempt(msgspec.Struct, frozen=True):
    """A try that ended before the job did. `is_retryable`: another replica may succeed."""

    error: EngineError
    is_retryable: bool
    is_down: bool = False
    """True if the replica did not answer as a working server: its health must be checked."""
    has_job: bool = True
    """False if the replica has not taken the job: it could not be reached, or was busy."""


REFUSED_GRAMMAR = FailedAttempt(
    EngineError(
        "grammar_unsupported", "the engine cannot read the grammar that this field needs; write it more simply"
    ),
    is_retryable=False,
)
"""A server refused a grammar. Its own message may quote the grammar of the whole turn, which no client has sent."""


REFUSED_IMAGE = FailedAttempt(
    EngineError("media_refused", "The image data you provided does not represent a valid image."), is_retryable=False
)
"""A server refused a picture. Its own message may quote what a library says of it; agents know this one."""


def refuse_media(attempt: FailedAttempt) -> FailedAttempt:
    """Returns the failure of a job with pictures in our own words, if the server's are about a picture."""
    message = attempt.error.message
    if attempt.error.code != "invalid_request" or not MEDIA_WORDS.search(message):
        return attempt
    if limit := MEDIA_LIMIT.search(message):
        error = EngineError("invalid_request", f"the engine takes at most {limit[1]} images in a prompt")
        return FailedAttempt(error, is_retryable=False)
    return REFUSED_IMAGE


def clean_message(message: str, secrets: Sequence[str] = (), max_chars: int = MAX_FAULT_MESSAGE_CHARS) -> str:
    """Returns a server's message as one printable line without the secrets."""
    # It is searched whole, and without invisible characters: a secret that is cut, or interrupted, is not found.
    line = "".join(letter for letter in " ".join(message.split()) if letter.isprintable())
    for secret in secrets:
        line = re.sub(re.escape(" ".join(secret.split())), HIDDEN_KEY, line, flags=re.IGNORECASE)
    return line[:max_chars]


def is_about_grammar(attempt: FailedAttempt, grammar: str) -> bool:
    """Returns true if a server refused the grammar of a job: its message says so, or quotes the grammar."""
    message = attempt.error.message
    if attempt.error.code != "invalid_request":
        return False
    return GRAMMAR_WORDS.search(message) is not None or any(
        piece in message for line in grammar.splitlines() if len(piece := " ".join(line.split())[:QUOTED_CHARS]) >= 8
    )


def classify_failure(failure: RemoteFailure, name: str, secrets: Sequence[str] = ()) -> FailedAttempt:
    """Returns the error for the client. Only messages about its request come from the server; others name it alone."""
    status, message = failure.status, clean_message(failure.message, secrets)
    if status in (401, 403):
        return FailedAttempt(_unavailable(f"the engine {name} does not accept the server's key"), is_retryable=True)
    if status == 429 or (status == 503 and BUSY.search(message)):
        error = EngineError("server_is_overloaded", "the engine is busy; try again shortly", retryable=True)
        return FailedAttempt(error, is_retryable=True, has_job=False)
    if status in (400, 404, 413, 422):
        code = "context_length_exceeded" if TOO_LONG.search(message) else "invalid_request"
        return FailedAttempt(EngineError(code, message), is_retryable=False)
    if 300 <= status < 400:
        return FailedAttempt(_unavailable(f"the engine {name} answered with a redirect"), is_retryable=True)
    return FailedAttempt(_unavailable(f"the engine {name} failed (status {status})"), is_retryable=True, is_down=True)


def lost_attempt(name: str, reason: str, *, has_job: bool = True) -> FailedAttempt:
    """Returns the failure of a try whose connection or stream broke."""
    error = _unavailable(f"the engine {name} is not available: {reason}")
    return FailedAttempt(error, is_retryable=True, is_down=True, has_job=has_job)


def _unavailable(message: str) -> EngineError:
    return EngineError("engine_unavailable", message, retryable=True)
