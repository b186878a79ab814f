"""Converts request messages to the JSON bodies of the HTTP API."""

import asyncio
from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import Error as JsonFormError
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from antiphon.app.base.errors import ApiError, unknown_field, unsupported_field

MAX_INLINE_BYTES = 64 * 1024
"""Size of the messages that are converted on the event loop. Larger ones are converted in a thread."""


async def convert_body(kind: type[Message], data: bytes, *, stream: bool) -> bytes:
    """Returns the body for an encoded message. `stream` tells which kind of method was called.

    Raises `ApiError` 400.
    """
    if len(data) <= MAX_INLINE_BYTES:
        return _convert_body(kind, data, stream=stream)
    return await asyncio.to_thread(_convert_body, kind, data, stream=stream)


def parse_message(kind: type[Message], data: bytes) -> Any:
    """Decodes a message, which may have fields that this server does not know. Raises `ApiError` 400."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ApiError(400, "invalid_message", f"We could not decode the message of your request: {error}") from None


def parse_known_message(kind: type[Message], data: bytes) -> Any:
    """Decodes a message without fields that this server does not know. Raises `ApiError` 400."""
    message = parse_message(kind, data)
    for field in UnknownFieldSet(message):
        raise unknown_field(f"field number {field.field_number}")
    return message


def _convert_body(kind: type[Message], data: bytes, *, stream: bool) -> bytes:
    body = message_as_json(parse_known_message(kind, data))
    if body.get("stream", stream) is not stream:
        raise unsupported_field("stream", "Whether the reply is streamed depends on the method that is called.")
    return msgspec.json.encode({**body, "stream": stream})


def message_as_json(message: Message) -> dict[str, Any]:
    """Returns a message as JSON; 64-bit integers are numbers. Raises `ApiError` 400 for a number that is not finite."""
    try:
        body: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    except (JsonFormError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"The message has no JSON form: {error}") from None
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_INT64 and field.name in body:
            body[field.name] = int(body[field.name])
    return body
