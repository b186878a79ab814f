"""Errors that the client receives over HTTP, before the first event of a response.

The cause decides the shape: client errors are an `ApiError` with a 4xx status; engine errors are translated here once.
Every body is `{"error": {"message", "type", "param", "code"}}`, always with all four keys, or in Anthropic's shape
`{"type": "error", "error": {"type", "message"}, "request_id"}`, or in Ollama's `{"error": message}`. The declaration of
the endpoint says which.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal

import msgspec

from antiphon.engine.protocol import EngineError
from antiphon.events.response import Response

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RATE_LIMIT = "rate_limit_error"

RETRY_AFTER_S = 1
"""Seconds in the `Retry-After` header: a slot is free again within about a second of the end of another turn."""

NO_RETRY = (("x-should-retry", "false"),)
"""Headers of an error that clients retry by its status (409, 429), though it lasts until a client changes something.

OpenAI's SDKs read it."""


class ApiError(Exception):
    """Error response to a request. `param` is the path of the offending field, such as `input[0].role`."""

    def __init__(
        self,
        status: int,
        code: str | None,
        message: str,
        param: str | None = None,
        *,
        kind: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.type = kind or (INVALID_REQUEST if status < 500 else SERVER_ERROR)
        self.headers = headers

    @cached_property
    def encoded_body(self) -> bytes:
        """Response body, encoded as JSON."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    @cached_property
    def header_pairs(self) -> tuple[tuple[bytes, bytes], ...]:
        """Response headers, encoded."""
        pairs = [("content-type", "application/json"), ("content-length", str(len(self.encoded_body))), *self.headers]
        return tuple((name.encode(), value.encode("latin-1", "replace")) for name, value in pairs)


class AnthropicError(ApiError):
    """The same error in the shape of the Messages API."""

    def __init__(self, error: ApiError, request_id: str) -> None:
        super().__init__(error.status, error.code, error.message, error.param, kind=error.type, headers=error.headers)
        self.request_id = request_id

    @cached_property
    def encoded_body(self) -> bytes:
        """Response body, encoded as JSON."""
        kind = ANTHROPIC_TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "api_error")
        error = {"type": kind, "message": self._named_message()}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": self.request_id})

    def _named_message(self) -> str:
        """Returns the message, with the field before it if it does not name the field: this shape has no `param`."""
        if self.code == "context_length_exceeded":
            return f"prompt is too long: {self.message}"  # clients compact the conversation at these words
        if self.param is None or f"'{self.param}'" in self.message:
            return self.message
        return f"{self.param}: {self.message}"


ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Error types of the Messages API by status."""


class OllamaError(ApiError):
    """The same error in the shape of Ollama's API."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.status, error.code, error.message, error.param, kind=error.type, headers=error.headers)

    @cached_property
    def encoded_body(self) -> bytes:
        """Response body, encoded as JSON."""
        return msgspec.json.encode({"error": self.message})


ANTHROPIC_HEADER = "anthropic-version"
"""Header of Anthropic's clients. At the paths that both APIs have, it chooses theirs."""
ErrorShape = Literal["openai", "anthropic", "by_header", "ollama"]
"""API whose shape the errors of an endpoint have; `by_header`: Anthropic's for its clients, else OpenAI's."""


def shape_error(error: ApiError, shape: ErrorShape, request_id: str, headers: Mapping[str, str]) -> ApiError:
    """Returns the error in the shape of an API. `headers` are those of the request."""
    if shape == "ollama":
        return OllamaError(error)
    is_anthropic = shape == "anthropic" or (shape == "by_header" and ANTHROPIC_HEADER in headers)
    return AnthropicError(error, request_id) if is_anthropic else error


class RefusedJobError(EngineError):
    """A job that the engine refuses with this very error."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.code or "server_error", error.message)
        self.api_error = error


_ENGINE_ERRORS: dict[str, tuple[int, str | None, str | None, str | None]] = {
    "context_length_exceeded": (400, "context_length_exceeded", None, "input"),
    "invalid_request": (400, "invalid_value", None, None),
    "grammar_unsupported": (400, "unsupported_parameter", None, None),
    "adapter_not_found": (404, "model_not_found", None, "model"),
    "media_refused": (400, "invalid_value", None, None),
    "media_unavailable": (503, "media_unavailable", None, None),
    # Agents give up for good on "overloaded"; after a rate limit they wait and retry.
    "server_is_overloaded": (429, "rate_limit_exceeded", RATE_LIMIT, None),
    "engine_unavailable": (503, "engine_unavailable", None, None),
    "deadline_exceeded": (503, "deadline_exceeded", None, None),
    "cancelled": (503, "cancelled", None, None),
}
"""Maps an engine error code to (status, code, type, param). A code that is not listed becomes a 500."""


def from_engine(error: EngineError, grammar_param: str | None = None) -> ApiError:
    """Returns the error for a job that the engine did not admit. A temporary one (429, 503) carries `Retry-After`.

    `grammar_param`: the request's field that needs a grammar.
    """
    if isinstance(error, RefusedJobError):
        return error.api_error
    status, code, kind, param = _ENGINE_ERRORS.get(error.code, (500, error.code, None, None))
    headers = (("retry-after", str(RETRY_AFTER_S)),) if status in (429, 503) else ()
    if error.code == "grammar_unsupported":
        param = grammar_param
    return ApiError(status, code, error.message, param, kind=kind, headers=headers)


@contextlib.contextmanager
def report_engine_errors() -> Iterator[None]:
    """Raises an `EngineError` of the block as the `ApiError` that the client receives."""
    try:
        yield
    except EngineError as error:
        raise from_engine(error) from None


def from_response(response: Response | None) -> ApiError | None:
    """Returns the error for a failed response, for APIs that cannot express one; None for any other response."""
    if response is None or response.status != "failed":
        return None
    if response.error is None:
        return ApiError(500, "server_error", "The response failed.")
    return ApiError(500, response.error.code, response.error.message)


def internal_error() -> ApiError:
    """Returns the error for a fault of the server. What it was is in the log only."""
    return ApiError(500, "server_error", "The server had an error while processing your request.")


def missing_field(param: str) -> ApiError:
    """Returns the error for a missing required field."""
    return ApiError(400, "missing_required_parameter", f"Missing required parameter: '{param}'.", param)


def unknown_field(param: str) -> ApiError:
    """Returns the error for an unknown field. The server never drops a field silently."""
    return ApiError(400, "unknown_parameter", f"Unknown parameter: '{clip_text(param)}'.", clip_text(param))


def unsupported_field(param: str, why: str) -> ApiError:
    """Returns the error for a well-formed field of the API that this server does not support."""
    return ApiError(400, "unsupported_parameter", f"Unsupported parameter: '{param}'. {why}", param)


def invalid_value(param: str, message: str) -> ApiError:
    """Returns the error for a field of the right type with an invalid value."""
    return ApiError(400, "invalid_value", message, param)


def invalid_type(param: str, expected: str, value: object) -> ApiError:
    """Returns the error for a field of the wrong JSON type. `expected` begins with its article."""
    message = f"Invalid type for '{param}': expected {expected}, but got {json_name(value)} instead."
    return ApiError(400, "invalid_type", message, param)


def storage_unavailable(reason: str) -> ApiError:
    """Returns the error for a request whose data cannot be stored."""
    return ApiError(503, "storage_unavailable", reason, headers=(("retry-after", "1"),))


def not_found(message: str, param: str | None = None) -> ApiError:
    """Returns the same error for an object that does not exist and for one that belongs to another owner."""
    return ApiError(404, None, message, param)


def json_name(value: object) -> str:
    """Returns the name of a decoded value's JSON type, with its article."""
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def clip_text(text: str, longest: int = 100) -> str:
    """Shortens text from a client, so that it can be quoted in an error and in a log line."""
    return text if len(text) <= longest else f"{text[:longest]}…"
