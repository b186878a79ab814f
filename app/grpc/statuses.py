"""gRPC statuses of errors. The error of the HTTP API is in the trailing metadata, with the same code and message."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator

import grpc

from antiphon.app.errors import ApiError

ERROR_BODY_KEY = "antiphon-error-bin"
"""Key of the trailing metadata that holds the JSON body of the error."""
STATUS_DETAILS_KEY = "grpc-status-details-bin"
"""Key of the trailing metadata that holds a `google.rpc.Status`."""
CLIENT_GONE = ApiError(499, "client_closed_request", "The client disconnected.")
ERROR_INFO_URL = b"type.googleapis.com/google.rpc.ErrorInfo"
ERROR_DOMAIN = "antiphon"
MAX_STATUS_MESSAGE_BYTES = 2048
"""Maximum size of an error in metadata: clients accept 8 KiB of it in all."""

_CODES_BY_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_CODES_BY_ERROR = {
    "deadline_exceeded": grpc.StatusCode.DEADLINE_EXCEEDED,
    "cancelled": grpc.StatusCode.CANCELLED,
}


class CallLostError(Exception):
    """The client has left, or reads nothing."""


async def send_metadata(context: grpc.aio.ServicerContext, stall_timeout_s: float) -> None:
    """Sends the initial metadata, which are none. Raises `CallLostError`.

    Call it before the first message: gRPC would send the metadata together with that message and, if it cannot be
    written, once more with the status. A call with two initial metadata never ends for its client.
    """
    await _send_in_time(context.send_initial_metadata(()), stall_timeout_s)


async def write_message(context: grpc.aio.ServicerContext, data: bytes, stall_timeout_s: float) -> None:
    """Sends a message. Raises `CallLostError`, also if the client's buffers stay full for `stall_timeout_s` seconds."""
    await _send_in_time(context.write(data), stall_timeout_s)


async def _send_in_time(sending: Awaitable[None], stall_timeout_s: float) -> None:
    try:
        async with asyncio.timeout(stall_timeout_s):
            await sending
    except (grpc.aio.InternalError, TimeoutError) as error:
        raise CallLostError from error


def status_code(status: int, code: str | None) -> grpc.StatusCode:
    """Returns the gRPC status of an error with this HTTP status and this code."""
    default = grpc.StatusCode.INVALID_ARGUMENT if 400 <= status < 500 else grpc.StatusCode.INTERNAL
    return _CODES_BY_ERROR.get(code or "") or _CODES_BY_STATUS.get(status, default)


async def abort_call(context: grpc.aio.ServicerContext, error: ApiError) -> None:
    """Ends the call with the status of an error, unless it has ended already. The handler must return after it."""
    code = status_code(error.status, error.code)
    metadata: list[tuple[str, str | bytes]] = [(name, value) for name, value in error.headers if name == "retry-after"]
    if len(error.encoded_body) <= MAX_STATUS_MESSAGE_BYTES:
        metadata.append((ERROR_BODY_KEY, error.encoded_body))
        metadata.append((STATUS_DETAILS_KEY, _status_details(code, error)))
    with contextlib.suppress(grpc.aio.InternalError):  # the client has left
        await context.abort(code, error.message[:MAX_STATUS_MESSAGE_BYTES], tuple(metadata))


def time_limit(context: grpc.aio.ServicerContext) -> float | None:
    """Returns the time of the event loop at which the client's deadline passes; None without a deadline."""
    remaining_s = context.time_remaining()
    return None if remaining_s is None else asyncio.get_running_loop().time() + max(remaining_s, 0.0)


@contextlib.contextmanager
def hold_time_limit(limit: float | None) -> Iterator[None]:
    """Raises `ApiError` at the end of the block if the deadline has passed: the client gives up at this moment.

    The engine may end the job first, and a failure of the turn is then no fault of the server.
    """
    failure: ApiError | None = None
    try:
        yield
    except ApiError as error:
        failure = error
    if limit is not None and asyncio.get_running_loop().time() >= limit:
        raise ApiError(503, "deadline_exceeded", "The deadline of the call has passed.")
    if failure is not None:
        raise failure


def _status_details(code: grpc.StatusCode, error: ApiError) -> bytes:
    """Returns a `google.rpc.Status` with an `ErrorInfo`: the error's code, and its type, field and HTTP status."""
    pairs = {"type": error.type, "param": error.param, "http_status": str(int(error.status))}
    info = _encode_field(1, (error.code or error.type).encode()) + _encode_field(2, ERROR_DOMAIN.encode())
    for name, value in pairs.items():
        if value is not None:
            pair = _encode_field(1, name.encode()) + _encode_field(2, value.encode())
            info += _encode_field(3, pair)
    detail = _encode_field(1, ERROR_INFO_URL) + _encode_field(2, info)
    number: int = code.value[0]
    return b"\x08" + _encode_varint(number) + _encode_field(2, error.message.encode()) + _encode_field(3, detail)


def _encode_varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _encode_field(number: int, data: bytes) -> bytes:
    """Returns a field that holds bytes, text or a message."""
    return _encode_varint(number << 3 | 2) + _encode_varint(len(data)) + data
