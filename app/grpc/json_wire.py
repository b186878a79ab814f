"""Encodes JSON as a protobuf message, from tables that are made of the message's descriptor.

Every token of every stream passes through here: message objects and `google.protobuf.json_format` take ten times as
long. The result is exactly the message whose JSON mapping is the JSON.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor

Encode = Callable[[Any], bytes]
"""Encodes a value without its tag and length."""

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_NULL, _FALSE, _TRUE = b"\x08\x00", b"\x20\x00", b"\x20\x01"
_pack_double = struct.Struct("<d").pack
_decode_json = msgspec.json.Decoder().decode


class JsonMismatchError(ValueError):
    """JSON that the message has no place for: the message is not up to date with the structs."""


def encode_varint(number: int) -> bytes:
    """Returns a number from 0 up to 2^64, encoded."""
    if number < 0x80:
        return bytes((number,))
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def encode_bytes_field(number: int, data: bytes) -> bytes:
    """Returns a field that holds bytes, text or a message."""
    return b"%b%b%b" % (encode_varint(number << 3 | _BYTES), encode_varint(len(data)), data)


def encode_json(descriptor: Descriptor, data: bytes) -> bytes:
    """Returns the message for a JSON object. Raises `JsonMismatchError`."""
    return _message_encoder(descriptor)(_decode_json(data))


@cache
def _message_encoder(descriptor: Descriptor) -> Encode:
    """Returns the encoder of a message. Its table of fields is complete before the first call, not before."""
    if descriptor.full_name in _WELL_KNOWN:
        return _WELL_KNOWN[descriptor.full_name]
    fields: dict[str, Encode] = {}

    def encode(value: Any) -> bytes:
        if not fields:
            fields.update({field.name: _field_encoder(field) for field in descriptor.fields})
        try:
            return b"".join([fields[key](child) for key, child in value.items()])
        except (KeyError, AttributeError, TypeError, ValueError, struct.error) as error:
            raise JsonMismatchError(f"{descriptor.full_name}: {error!r}") from None

    return encode


def _field_encoder(field: FieldDescriptor) -> Encode:
    """Returns the encoder of a field with its tag."""
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        fixed_tag = encode_varint(field.number << 3 | _FIXED64)
        return lambda value: fixed_tag + _pack_double(value)
    if field.type == FieldDescriptor.TYPE_BOOL:
        flag_tag = encode_varint(field.number << 3 | _VARINT)
        return lambda value: flag_tag + (b"\x01" if value else b"\x00")
    if field.type == FieldDescriptor.TYPE_UINT32:
        number_tag = encode_varint(field.number << 3 | _VARINT)
        return lambda value: number_tag + encode_varint(value)
    tag = encode_varint(field.number << 3 | _BYTES)
    inner = str.encode if field.type == FieldDescriptor.TYPE_STRING else _message_encoder(field.message_type)

    def encode(value: Any) -> bytes:
        data = inner(value)
        return b"%b%b%b" % (tag, encode_varint(len(data)), data)

    return encode


def _encode_value(value: Any) -> bytes:
    """Encodes a `google.protobuf.Value`."""
    if value is None:
        return _NULL
    if isinstance(value, str):
        return encode_bytes_field(3, value.encode())
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int | float):
        return b"\x11" + _pack_double(value)
    if isinstance(value, dict):
        return encode_bytes_field(5, _encode_object(value))
    return encode_bytes_field(6, _encode_list(value))


def _encode_object(value: dict[str, Any]) -> bytes:
    """Encodes a `google.protobuf.Struct`: a map from names to values."""
    return b"".join(
        [
            encode_bytes_field(1, encode_bytes_field(1, name.encode()) + encode_bytes_field(2, _encode_value(child)))
            for name, child in value.items()
        ]
    )


def _encode_list(value: list[Any]) -> bytes:
    """Encodes a `google.protobuf.ListValue`."""
    return b"".join([encode_bytes_field(1, _encode_value(child)) for child in value])


_WELL_KNOWN: dict[str, Encode] = {
    "google.protobuf.Value": _encode_value,
    "google.protobuf.Struct": _encode_object,
    "google.protobuf.ListValue": _encode_list,
}
