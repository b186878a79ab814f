"""Errors that travel to the client over HTTP, before any event was said.

Whoever is to blame decides the shape: the client's faults are an `ApiError` with a 4xx status, the engine's are
translated here once. Every body is `{"error": {"message", "type", "param", "code"}}`, all four keys always there.
"""

from functools import cached_property

import msgspec

from antiphon.engine.protocol import EngineError

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RATE_LIMIT = "rate_limit_error"

RETRY_AFTER_S = 1
"""What `Retry-After` says: a slot is free again within about a second of another turn's end."""


class ApiError(Exception):
    """A request that is answered with an error. `param` is the path of the field to blame, as `input[0].role`."""

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
        """The error as JSON."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    @cached_property
    def header_pairs(self) -> tuple[tuple[bytes, bytes], ...]:
        """The headers of the answer."""
        said = [("content-type", "application/json"), ("content-length", str(len(self.encoded_body))), *self.headers]
        return tuple((name.encode(), value.encode("latin-1", "replace")) for name, value in said)


_ENGINE_ERRORS: dict[str, tuple[int, str | None, str | None, str | None]] = {
    "context_length_exceeded": (400, "context_length_exceeded", None, "input"),
    "invalid_request": (400, "invalid_value", None, None),
    "grammar_unsupported": (400, "unsupported_parameter", None, None),
    # Agents give up for good on "overloaded"; a rate limit they wait out and try again.
    "server_is_overloaded": (429, "rate_limit_exceeded", RATE_LIMIT, None),
    "engine_unavailable": (503, "engine_unavailable", None, None),
    "deadline_exceeded": (503, "deadline_exceeded", None, None),
    "cancelled": (503, "cancelled", None, None),
}
"""Engine code to (status, code, type, param). What is missing is a 500."""


def from_engine(error: EngineError) -> ApiError:
    """The answer to a job that the engine did not admit. A refusal that may pass carries `Retry-After`."""
    status, code, kind, param = _ENGINE_ERRORS.get(error.code, (500, error.code, None, None))
    wait = (("retry-after", str(RETRY_AFTER_S)),) if status in (429, 503) else ()
    return ApiError(status, code, error.message, param, kind=kind, headers=wait)


def missing_field(param: str) -> ApiError:
    """A field that must be there is not."""
    return ApiError(400, "missing_required_parameter", f"Missing required parameter: '{param}'.", param)


def unknown_field(param: str) -> ApiError:
    """A field that this server does not know. Nothing a client sends is dropped silently."""
    return ApiError(400, "unknown_parameter", f"Unknown parameter: '{clip_text(param)}'.", clip_text(param))


def unsupported_field(param: str, why: str) -> ApiError:
    """A field that is known, well formed, and not served."""
    return ApiError(400, "unsupported_parameter", f"Unsupported parameter: '{param}'. {why}", param)


def invalid_value(param: str, message: str) -> ApiError:
    """A field of the right type whose value cannot be."""
    return ApiError(400, "invalid_value", message, param)


def invalid_type(param: str, expected: str, value: object) -> ApiError:
    """A field of the wrong JSON type. `expected` begins with its article."""
    message = f"Invalid type for '{param}': expected {expected}, but got {json_name(value)} instead."
    return ApiError(400, "invalid_type", message, param)


def not_found(what: str, param: str | None = None) -> ApiError:
    """Something that is not here, or not this owner's: the two look alike."""
    return ApiError(404, None, what, param)


def json_name(value: object) -> str:
    """What a decoded JSON value is called, with its article."""
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def clip_text(text: str, longest: int = 100) -> str:
    """A client's own words, short enough to be repeated in an error and in a log line."""
    return text if len(text) <= longest else f"{text[:longest]}…"
