"""The descriptor set is that of the `.proto` files beside it."""

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from antiphon.app.grpc import descriptors

FIELD = re.compile(r"^ +(?P<label>optional |repeated )?(?P<type>map<.*>|[\w.]+) (?P<name>\w+) = (?P<number>\d+);$")
METHOD = re.compile(r"^  rpc (\w+)\(([\w.]+)\) returns \((stream )?([\w.]+)\);$", re.MULTILINE)
FOLDER = Path(descriptors.__file__).parent


def describe_field(message: DescriptorProto, field: FieldDescriptorProto) -> tuple[str, str, str, int]:
    """Returns label, type, name and number of a field as its file writes them."""
    name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    kind = field.type_name.rpartition(".")[2] or name
    for entry in message.nested_type:
        if entry.name == kind:
            kind = f"map<{', '.join(describe_field(entry, each)[1] for each in entry.field)}>"
            return "", kind, field.name, field.number
    label = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
    return "optional " if field.proto3_optional else label, kind, field.name, field.number


def read_messages(text: str) -> dict[str, list[tuple[str, str, str, int]]]:
    """Returns the fields of each message of a file."""
    messages: dict[str, list[tuple[str, str, str, int]]] = {}
    for line in text.splitlines():
        if line.startswith("message "):
            fields = messages[line.split()[1]] = []
        elif match := FIELD.match(line):
            fields.append((match["label"] or "", match["type"], match["name"], int(match["number"])))
    return messages


@pytest.mark.parametrize("file", descriptors.DESCRIPTOR_SET.file, ids=lambda file: Path(file.name).stem)
def test_descriptor_set_is_that_of_the_files(file: FileDescriptorProto) -> None:
    text = (FOLDER / Path(file.name).name).read_text(encoding="utf-8")
    own = {each.name: [describe_field(each, field) for field in each.field] for each in file.message_type}
    assert own == read_messages(text)
    assert f"\npackage {file.package};\n" in text
    package = f".{file.package}."
    methods = [
        (each.name, each.input_type, "stream " if each.server_streaming else "", each.output_type)
        for service in file.service
        for each in service.method
    ]
    assert [
        tuple(part.removeprefix(package).removeprefix(".") for part in method) for method in methods
    ] == METHOD.findall(text)


def test_groups_are_those_of_the_files() -> None:
    (engine,) = (file for file in descriptors.DESCRIPTOR_SET.file if file.package == descriptors.ENGINE_PACKAGE)
    groups = {
        group.name: [
            field.name for field in message.field if field.HasField("oneof_index") and field.oneof_index == index
        ]
        for message in engine.message_type
        for index, group in enumerate(message.oneof_decl)
        if not group.name.startswith("_")
    }
    text = (FOLDER / "vllm_engine.proto").read_text(encoding="utf-8")
    written = re.findall(r"^  oneof (\w+) \{\n(.*?)^  \}", text, re.MULTILINE | re.DOTALL)
    assert groups == {name: re.findall(r"(\w+) = ", fields) for name, fields in written}
