"""Writes `antiphon.proto` from the structs of the HTTP API: `python -m antiphon.app.grpc`."""

from antiphon.app.grpc.descriptors import API_FILE
from antiphon.app.grpc.message_types import list_message_types
from antiphon.app.grpc.proto_parser import parse_proto
from antiphon.app.grpc.proto_writer import write_proto


def render_proto() -> str:
    """Returns the text of the file, with the field numbers of the present one."""
    present = parse_proto(API_FILE.name, API_FILE.read_text(encoding="utf-8")) if API_FILE.exists() else None
    return write_proto(list_message_types(), present)


if __name__ == "__main__":
    API_FILE.write_text(render_proto(), encoding="utf-8")
