"""Reads `.proto` files into descriptors, so that neither a compiler nor generated code is needed.

It reads the part of proto3 that the files of this package use: imports, messages, enums without options, `oneof`, maps,
and services. A construct that it does not know raises `ProtoSyntaxError`.
"""

import re
from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

_TOKEN = re.compile(r'//[^\n]*|\s+|("[^"]*"|[\w.]+|[{}()[\];=<>,])')
_SCALARS = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


class ProtoSyntaxError(ValueError):
    """A file that this parser cannot read."""


def parse_proto(name: str, text: str) -> FileDescriptorProto:
    """Returns the descriptor of the file `name` with this text. Raises `ProtoSyntaxError`."""
    parser = _Parser(text)
    file = FileDescriptorProto(name=name, syntax="proto3")
    while parser.has_tokens:
        _parse_statement(parser, file)
    for message in file.message_type:
        for field in (*message.field, *(field for entry in message.nested_type for field in entry.field)):
            if field.type_name:
                field.type_name = _absolute_name(field.type_name, file)
    for service in file.service:
        for method in service.method:
            method.input_type = _absolute_name(method.input_type, file)
            method.output_type = _absolute_name(method.output_type, file)
    return file


def _absolute_name(name: str, file: FileDescriptorProto) -> str:
    """Returns the full name of a type, which the file defines or another package does."""
    is_local = name.partition(".")[0] in {message.name for message in file.message_type}
    return f".{file.package}.{name}" if is_local else f".{name}"


def default_json_name(name: str) -> str:
    """Returns the name that a field has in JSON unless its file says otherwise."""
    first, *others = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)


class _Parser:
    """The tokens of a file, from the first to the last."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_split_tokens(text))
        self._position = 0

    @property
    def has_tokens(self) -> bool:
        return self._position < len(self._tokens)

    def peek(self) -> str:
        return self._tokens[self._position] if self.has_tokens else ""

    def take(self) -> str:
        if not self.has_tokens:
            raise ProtoSyntaxError("the file ends too early")
        self._position += 1
        return self._tokens[self._position - 1]

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if (found := self.take()) != token:
                raise ProtoSyntaxError(f"expected {token!r}, found {found!r}")

    def take_if(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self._position += 1
        return True


def _split_tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ProtoSyntaxError(f"unexpected character {text[position]!r}")
        position = match.end()
        if match[1] is not None:
            yield match[1]


def _parse_statement(parser: _Parser, file: FileDescriptorProto) -> None:
    match parser.take():
        case "syntax":
            parser.expect("=", '"proto3"', ";")
        case "package":
            file.package = parser.take()
            parser.expect(";")
        case "import":
            file.dependency.append(parser.take().strip('"'))
            parser.expect(";")
        case "message":
            _parse_message(parser, file.message_type.add())
        case "service":
            _parse_service(parser, file.service.add())
        case other:
            raise ProtoSyntaxError(f"unknown statement {other!r}")


def _parse_message(parser: _Parser, message: DescriptorProto) -> None:
    message.name = parser.take()
    parser.expect("{")
    virtual: list[FieldDescriptorProto] = []
    while not parser.take_if("}"):
        if parser.take_if("oneof"):
            index = len(message.oneof_decl)
            message.oneof_decl.add(name=parser.take())
            parser.expect("{")
            while not parser.take_if("}"):
                _parse_field(parser, message, parser.take()).oneof_index = index
        elif parser.take_if("optional"):
            virtual.append(_parse_field(parser, message, parser.take()))
        elif parser.take_if("repeated"):
            _parse_field(parser, message, parser.take()).label = FieldDescriptorProto.LABEL_REPEATED
        elif parser.take_if("map"):
            _parse_map(parser, message)
        elif parser.take_if("reserved"):
            number = int(parser.take())
            message.reserved_range.add(start=number, end=number + 1)
            parser.expect(";")
        else:
            _parse_field(parser, message, parser.take())
    for field in virtual:  # proto3 represents presence by a group of one field, after the real groups
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


def _parse_field(parser: _Parser, message: DescriptorProto, kind: str) -> FieldDescriptorProto:
    name = parser.take()
    parser.expect("=")
    field = message.field.add(
        name=name,
        json_name=default_json_name(name),
        number=int(parser.take()),
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    _set_type(field, kind)
    if parser.take_if("["):
        parser.expect("json_name", "=")
        field.json_name = parser.take().strip('"')
        parser.expect("]")
    parser.expect(";")
    return field


def _set_type(field: FieldDescriptorProto, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, kind


def _parse_map(parser: _Parser, message: DescriptorProto) -> None:
    parser.expect("<")
    key = parser.take()
    parser.expect(",")
    value = parser.take()
    parser.expect(">")
    entry = message.nested_type.add()
    entry.options.map_entry = True
    field = _parse_field(parser, message, key)
    entry.name = "".join(word.capitalize() for word in field.name.split("_")) + "Entry"
    for number, (name, kind) in enumerate((("key", key), ("value", value)), 1):
        _set_type(
            entry.field.add(name=name, json_name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL), kind
        )
    field.label, field.type = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_MESSAGE
    field.type_name = f"{message.name}.{entry.name}"


def _parse_service(parser: _Parser, service: ServiceDescriptorProto) -> None:
    service.name = parser.take()
    parser.expect("{")
    while not parser.take_if("}"):
        parser.expect("rpc")
        method: MethodDescriptorProto = service.method.add(name=parser.take())
        parser.expect("(")
        method.input_type = parser.take()
        parser.expect(")", "returns", "(")
        method.server_streaming = parser.take_if("stream")
        method.output_type = parser.take()
        parser.expect(")", ";")
