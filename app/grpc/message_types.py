"""Derives the messages of the gRPC API from the structs of the HTTP API and from the tables of request fields.

The default JSON mapping of every message is exactly the JSON of the HTTP API. Protobuf leaves out a null and an empty
list, so a field that can be null or a list is a `google.protobuf.Value` or `ListValue`, which keep both. All other
fields have presence. A union of structs with a `type` becomes one message with the fields of all of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from msgspec import UNSET, Struct, UnsetType
from msgspec import inspect as mi

from antiphon.app.openapi.schemas import field_schema
from antiphon.app.projections.chat_schema import ChatChunk, ChatCompletion
from antiphon.app.projections.completions.schema import TextCompletion
from antiphon.app.requests.fields import RequestField
from antiphon.app.requests.fields.tables import FIELDS_BY_ENDPOINT
from antiphon.events.hosted import HostedItem
from antiphon.events.hosted_events import HostedEvent
from antiphon.events.items import Annotation, Content, CustomToolCallOutput, FunctionCallOutput
from antiphon.events.response import OutputItem, Response
from antiphon.events.stream import StreamEvent

VALUE, LIST, OBJECT = "google.protobuf.Value", "google.protobuf.ListValue", "google.protobuf.Struct"
MAX_INT32 = 2**31 - 1
PADDING_FIELD = "obfuscation"
"""Key of the random text that pads events."""


class RetrieveResponseRequest(Struct, kw_only=True):
    """Names a stored response. For a stream: `starting_after` is the number of the last event that is known."""

    response_id: str
    starting_after: int | UnsetType = UNSET
    include_obfuscation: bool | UnsetType = UNSET


class CancelResponseRequest(Struct):
    """Names a background response."""

    response_id: str


class DeleteResponseRequest(Struct):
    """Names a stored response."""

    response_id: str


class DeletedResponse(Struct):
    """Confirms that a response was deleted."""

    id: str
    object: str
    deleted: bool


class MessageField(Struct, frozen=True):
    """A field of a message: its protobuf type and, for a value without a fixed type, what it holds."""

    kind: str
    content: str = ""


class MessageType(Struct, frozen=True):
    """A message: its description and its fields in the order of the struct."""

    description: str
    fields: dict[str, MessageField]


UNSENT = frozenset((*get_args(HostedItem), FunctionCallOutput, CustomToolCallOutput))
"""Items of tools that a server runs itself."""
UNIONS: dict[str, frozenset[type[Struct]]] = {
    "ResponseEvent": frozenset(get_args(StreamEvent)) - frozenset(get_args(HostedEvent)),
    "OutputItem": frozenset(get_args(OutputItem)) - UNSENT,
    "ContentPart": frozenset(get_args(Content)),
    "Annotation": frozenset(get_args(Annotation)),
}
"""Unions that are messages, by the name of the message, without the events and items of tools that a server runs
itself: this server sends none."""
UNION_DESCRIPTIONS = {
    "ResponseEvent": "An event of the stream of POST /v1/responses. `type` tells which fields it has.",
    "OutputItem": "An output item. `type` tells which fields it has.",
    "ContentPart": "A part of an item's content. `type` tells which fields it has.",
    "Annotation": "A source of a text. `type` tells which fields it has.",
}
STRUCTS: tuple[type[Struct], ...] = (
    Response,
    ChatChunk,
    ChatCompletion,
    TextCompletion,
    RetrieveResponseRequest,
    CancelResponseRequest,
    DeleteResponseRequest,
    DeletedResponse,
)
PADDED_MESSAGES = ("ResponseEvent", "ChatChunk", "TextCompletion")
"""Messages of streams, whose events can be padded."""
REQUESTS = {
    "CreateResponseRequest": "POST /v1/responses",
    "CreateChatCompletionRequest": "POST /v1/chat/completions",
    "CreateCompletionRequest": "POST /v1/completions",
}
"""Endpoint whose body each request message is."""


def list_message_types() -> dict[str, MessageType]:
    """Returns all messages by name: requests, replies, and every struct inside a reply."""
    messages = {name: _request_message(FIELDS_BY_ENDPOINT[endpoint], endpoint) for name, endpoint in REQUESTS.items()}
    collector = _StructCollector(messages)
    for name, union in UNIONS.items():
        collector.add_union(name, union)
    for struct in STRUCTS:
        collector.add_struct(mi.type_info(struct))
    for name in PADDED_MESSAGES:
        messages[name].fields[PADDING_FIELD] = MessageField("string")
    return messages


def _request_message(table: Iterable[RequestField], endpoint: str) -> MessageType:
    """Returns the message of a body. Fields that are always refused are left out."""
    fields = {
        field.name: _request_field(field_schema(field))
        for field in sorted(table, key=lambda field: field.name)
        if field.handling != "refused"
    }
    return MessageType(f"The body of {endpoint}; docs/fields.md describes the fields.", fields)


def _request_field(schema: Mapping[str, Any]) -> MessageField:
    """Returns the type of a request field. Null means the same as leaving it out, so that it needs no type for it."""
    schema = next((option for option in schema.get("anyOf", ()) if option.get("type") != "null"), schema)
    match schema.get("type"):
        case "string":
            return MessageField("string")
        case "boolean":
            return MessageField("bool")
        case "number":
            return MessageField("double")
        case "integer":
            is_small = schema.get("minimum", 0) >= -MAX_INT32 and schema.get("maximum", MAX_INT32) <= MAX_INT32
            return MessageField("int32" if is_small else "int64")
        case "object":
            return MessageField(OBJECT)
        case "array":
            return MessageField(LIST)
    return MessageField(VALUE)


class _StructCollector:
    """Adds the messages of structs, and of the structs inside them, to a dictionary."""

    def __init__(self, messages: dict[str, MessageType]) -> None:
        self._messages = messages

    def add_struct(self, info: mi.Type) -> str:
        """Adds the message of a struct, unless it is there. Returns its name."""
        assert isinstance(info, mi.StructType)
        name = info.cls.__name__
        if name not in self._messages:
            self._messages[name] = MessageType(_first_line(info.cls), {})
            self._messages[name].fields.update(self._list_fields(info))
        return name

    def add_union(self, name: str, members: frozenset[type[Struct]]) -> str:
        """Adds the message of a union, unless it is there. Returns its name."""
        if name not in self._messages:
            message = self._messages[name] = MessageType(UNION_DESCRIPTIONS[name], {})
            for member in sorted(members, key=lambda cls: cls.__name__):
                info = mi.type_info(member)
                assert isinstance(info, mi.StructType)
                for key, field in self._list_fields(info).items():
                    message.fields[key] = self._merge(message.fields.get(key, field), field)
        return name

    def _list_fields(self, info: mi.StructType) -> dict[str, MessageField]:
        fields = {info.tag_field: MessageField("string")} if info.tag_field else {}
        return fields | {field.encode_name: self._field(field.type) for field in info.fields}

    def _field(self, info: mi.Type) -> MessageField:
        """Returns the field of a value of this type, which may be absent."""
        parts = [part for part in _parts(info) if not _is_unset(part)]
        if all(isinstance(part, mi.StructType) for part in parts) and (name := self._union_name(parts)) is not None:
            return MessageField(name)
        content = self._describe(info)
        kinds = {self._kind(part) for part in parts}
        if kinds == {"uint32", "double"}:  # JSON has one kind of number
            return MessageField("double")
        kind = kinds.pop() if len(kinds) == 1 and parts else VALUE
        return MessageField(kind, content if kind in (VALUE, LIST, OBJECT) else "")

    def _kind(self, info: mi.Type) -> str:
        match info:
            case mi.StrType() | mi.LiteralType():
                return "string" if not isinstance(info, mi.LiteralType) or _is_text(info) else VALUE
            case mi.BoolType():
                return "bool"
            case mi.IntType():
                return "uint32"
            case mi.FloatType():
                return "double"
            case mi.StructType():
                return self._union_name([info]) or self.add_struct(info)
            case mi.DictType():
                self._describe(info.value_type)
                return OBJECT
            case mi.ListType() | mi.VarTupleType():
                return LIST
        return VALUE

    def _union_name(self, parts: Iterable[mi.Type]) -> str | None:
        """Returns the name of the union that has all of these types that this server sends; None if there is none."""
        structs = {part.cls for part in parts if isinstance(part, mi.StructType)}
        for name, members in UNIONS.items():
            if structs & members and structs <= members | UNSENT:
                return self.add_union(name, members)
        return None

    def _merge(self, first: MessageField, second: MessageField) -> MessageField:
        """Returns the field that holds the values of two members of a union."""
        if first.kind == second.kind:
            return first
        words = [word for field in (first, second) for word in (field.content or field.kind).split(" or ")]
        return MessageField(VALUE, " or ".join(dict.fromkeys(words)))

    def _describe(self, info: mi.Type) -> str:
        """Returns the type in words, and adds the messages of the structs in it."""
        parts = [part for part in _parts(info) if not _is_unset(part)]
        structs = [part for part in parts if isinstance(part, mi.StructType)]
        if len(structs) > 1 and (name := self._union_name(structs)) is not None:
            words = [name, *(self._word(part) for part in parts if part not in structs)]
        else:
            words = [self._word(part) for part in parts]
        return " or ".join(dict.fromkeys(words))

    def _word(self, info: mi.Type) -> str:
        match info:
            case mi.NoneType():
                return "null"
            case mi.ListType() | mi.VarTupleType():
                return f"list of {self._describe(info.item_type)}"
            case mi.DictType():
                return f"object of {self._describe(info.value_type)}"
            case mi.AnyType():
                return "any JSON"
        kind = self._kind(info)
        return "number" if kind in ("uint32", "double") else kind


def _parts(info: mi.Type) -> tuple[mi.Type, ...]:
    return info.types if isinstance(info, mi.UnionType) else (info,)


def _is_unset(info: mi.Type) -> bool:
    return isinstance(info, mi.CustomType) and info.cls is UnsetType


def _is_text(info: mi.LiteralType) -> bool:
    return all(isinstance(value, str) for value in info.values)


def _first_line(cls: type) -> str:
    return " ".join((cls.__doc__ or cls.__name__).partition("\n\n")[0].split())
