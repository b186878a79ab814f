"""Writes `antiphon.proto`. A field keeps the number that it has in the present file, and a new one gets the next."""

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from antiphon.app.grpc.message_types import LIST, OBJECT, VALUE, MessageField, MessageType
from antiphon.app.grpc.proto_parser import default_json_name

HEAD = """// The gRPC API of Antiphon. `python -m antiphon.app.grpc` writes this file from the structs of the HTTP API.
//
// The default JSON mapping of each message is exactly the JSON of the HTTP API: a body, a reply, or the `data` of an
// event. A field of google.protobuf.Value or ListValue can be null or an empty list, which protobuf would leave out.
// Field numbers never change.

syntax = "proto3";

package antiphon.v1;

import "google/protobuf/struct.proto";

// Responses: POST /v1/responses and the methods of stored responses. A method that ends in Stream sends the events.
service Responses {
  rpc Create(CreateResponseRequest) returns (Response);
  rpc CreateStream(CreateResponseRequest) returns (stream ResponseEvent);
  rpc Retrieve(RetrieveResponseRequest) returns (Response);
  rpc RetrieveStream(RetrieveResponseRequest) returns (stream ResponseEvent);
  rpc Cancel(CancelResponseRequest) returns (Response);
  rpc Delete(DeleteResponseRequest) returns (DeletedResponse);
}

// Chat completions: POST /v1/chat/completions.
service ChatCompletions {
  rpc Create(CreateChatCompletionRequest) returns (ChatCompletion);
  rpc CreateStream(CreateChatCompletionRequest) returns (stream ChatChunk);
}

// Text completions: POST /v1/completions. A stream consists of parts of the reply.
service Completions {
  rpc Create(CreateCompletionRequest) returns (TextCompletion);
  rpc CreateStream(CreateCompletionRequest) returns (stream TextCompletion);
}
"""
WELL_KNOWN = (VALUE, LIST, OBJECT)
SCALAR_KINDS = ("string", "bool", "double", "uint32", "int32", "int64")
"""Types of fields that are not messages; they are `optional`, which keeps 0 and the empty string."""


def write_proto(messages: dict[str, MessageType], present: FileDescriptorProto | None) -> str:
    """Returns the text of the file. `present` is the file before, whose numbers are kept."""
    earlier = {message.name: message for message in present.message_type} if present is not None else {}
    texts = [_write_message(name, message, earlier.get(name)) for name, message in messages.items()]
    return "\n".join([HEAD, *texts])


def _write_message(name: str, message: MessageType, earlier: DescriptorProto | None) -> str:
    numbers = {field.name: field.number for field in earlier.field} if earlier is not None else {}
    reserved = {span.start for span in earlier.reserved_range} if earlier is not None else set()
    reserved |= {number for field, number in numbers.items() if field not in message.fields}
    following = max([0, *numbers.values(), *reserved]) + 1
    for field in message.fields:
        if field not in numbers:
            numbers[field] = following
            following += 1
    lines = [f"// {message.description}", f"message {name} {{"]
    lines += [f"  reserved {number};" for number in sorted(reserved)]
    lines += [_write_field(field, kind, numbers[field]) for field, kind in message.fields.items()]
    return "\n".join([*lines, "}", ""])


def _write_field(name: str, field: MessageField, number: int) -> str:
    label = "optional " if field.kind in SCALAR_KINDS else ""
    comment = f"  // {field.content}" if field.content and field.kind in WELL_KNOWN else ""
    option = "" if default_json_name(name) == name else f' [json_name = "{name}"]'
    return f"  {label}{field.kind} {name} = {number}{option};{comment}"
