"""Interface between the engine and the HTTP interfaces of remote servers."""

import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import msgspec

from antiphon.engine.media_messages import ImageForm
from antiphon.engine.protocol import Capabilities, Job, TokenLogprob
from antiphon.engine.remote.images.pictures import RemotePicture

EngineKind = Literal["vllm", "sglang", "llama.cpp", "trtllm"]
Finish = Literal["stop", "length", "abort"]
GrammarSyntax = Literal["lark", "gbnf"]
"""Syntax of grammars: llguidance's Lark, or llama.cpp's own."""


class RemoteFailure(msgspec.Struct, frozen=True):
    """An error that a server reports: its HTTP status, or the status that its event carries."""

    status: int
    message: str


class RemoteOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one event of a server's stream."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    finish: Finish | None = None
    cached_tokens: int | None = None
    """Prompt tokens read from the cache, if the event tells."""
    prompt_tokens: int = 0
    """Length of the prompt with all tokens of its pictures, if the event tells."""
    prompt_ids: tuple[int, ...] = ()
    """Ids of that prompt, if the event tells."""
    has_placeholders: bool = False
    """True if the event tells where the tokens of pictures are."""
    is_admission: bool = False
    """True if the event shows that the job has its slot, without tokens."""
    is_last: bool = False
    """True if nothing that matters follows: a final count of cached tokens, for example."""
    failure: RemoteFailure | None = None


NO_OUTPUT = RemoteOutput()
STREAM_END = b"[DONE]"
"""Data of the last event of a stream."""

STATUS_PATTERN = re.compile(r"[0-9]{3}")

Decoder = Callable[[bytes], RemoteOutput]
"""Decodes the events of one stream, in order. Raises `msgspec.DecodeError` or `ValueError`."""


class JobTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a request needs besides the job."""

    model: str
    max_tokens: int
    """Limit of new tokens that fits into the context."""
    stop_ids: tuple[int, ...]
    """Token ids that end the turn: the job's own and, unless they are ignored, the model's."""
    cache_salt: str = ""
    """Salt that separates the owners' prefix caches; empty if there is nothing to separate."""
    grammar: str | None = None
    """Grammar of the job in the syntax of the interface."""
    banned_ids: tuple[int, ...] = ()
    """Tokens that must not be generated, because the grammar would take them for their text."""
    pictures: tuple[RemotePicture, ...] = ()
    """Pictures of the job, in order."""
    max_prompt_tokens: int = 0
    """Tokens that the prompt may have with all those of its pictures."""
    media_marker: str = ""
    """Text that stands for a picture in a prompt that is text."""


class BackendApi:
    """One HTTP interface of one kind of server. It has no state."""

    path: str
    """Path of the endpoint."""
    capabilities: Capabilities
    """Fields of a job that this interface can express."""
    grammar_syntax: GrammarSyntax = "lark"
    """Syntax in which it takes grammars."""
    uncounted_fields: tuple[str, ...] = ("presence_penalty", "frequency_penalty", "seed")
    """Sampling fields that the server counts anew in a job with earlier tokens: from the end of the prompt."""
    image_form: ImageForm = "none"
    """Form of prompts with pictures, if the server serves them."""

    def encode_job(self, job: Job, target: JobTarget) -> bytes:
        """Returns the body of the request. A job with prompt log-probabilities is not streamed, every other one is."""
        raise NotImplementedError

    def create_decoder(self, job: Job) -> Decoder:
        """Returns a decoder of this job's events. Each event carries the tokens since the one before."""
        raise NotImplementedError


class ErrorReport(msgspec.Struct):
    """`{"error": {"message", "code"}}`, or the same two fields without the envelope."""

    error: "ErrorReport | str | None" = None
    message: str | None = None
    detail: str | None = None
    code: int | str | None = None


def read_error_body(status: int, body: bytes) -> RemoteFailure:
    """Reads the error formats of vLLM, SGLang, TensorRT-LLM and llama.cpp."""
    try:
        error = msgspec.json.decode(body, type=ErrorReport)
    except (msgspec.DecodeError, RecursionError):
        text = " ".join(body.decode(errors="replace").split())
        return RemoteFailure(status, text or f"HTTP status {status}")
    if isinstance(error.error, ErrorReport):
        error = error.error
    message = error.message or error.detail or (error.error if isinstance(error.error, str) else None)
    return RemoteFailure(status, message or f"HTTP status {status}")


def _event_failure(error: ErrorReport | str) -> RemoteFailure:
    """Returns the error that an event carries. Without a numeric code it is an internal error of the server."""
    if isinstance(error, str):
        return RemoteFailure(500, error)
    code = error.code
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and STATUS_PATTERN.fullmatch(code)) else 500
    return RemoteFailure(status if 400 <= status < 600 else 500, error.message or "an error without a message")


class RemoteEvent(msgspec.Struct):
    """Base of the events of a stream. Each kind of server can report an error in one."""

    error: ErrorReport | str | None = None


EventT = TypeVar("EventT", bound=RemoteEvent)


def create_event_decoder(decode: Callable[[bytes], EventT], read_event: Callable[[EventT], RemoteOutput]) -> Decoder:
    """Returns a decoder that skips the end marker and returns an event's error. `read_event` reads the others."""

    def decode_event(payload: bytes) -> RemoteOutput:
        if payload == STREAM_END:
            return NO_OUTPUT
        event = decode(payload)
        return read_event(event) if event.error is None else RemoteOutput(failure=_event_failure(event.error))

    return decode_event


COMPLETION_FINISH_REASONS: dict[str, Finish] = {"stop": "stop", "length": "length"}
"""Regular ends. Any other reason, such as `abort`, is a failure."""


def read_finish(reason: str | None) -> Finish | None:
    """Returns how a generation ended; None if it has not."""
    return None if reason is None else COMPLETION_FINISH_REASONS.get(reason, "abort")


def select_top(candidates: Mapping[int, float], count: int) -> tuple[tuple[int, float], ...]:
    """Returns the most likely candidates, most likely first. Servers add the chosen token to them."""
    return tuple(sorted(candidates.items(), key=lambda pair: -pair[1])[:count])
