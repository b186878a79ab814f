"""The descriptors and message classes of this package's `.proto` files."""

from functools import cache
from pathlib import Path

from google.protobuf import descriptor_pool, message_factory, struct_pb2
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import Message

from antiphon.app.grpc.proto_parser import parse_proto

API_FILE = Path(__file__).with_name("antiphon.proto")
ENGINE_FILE = Path(__file__).with_name("vllm_engine.proto")
SHARED_ENGINE_FILE = Path(__file__).with_name("smg_common.proto")
_WELL_KNOWN_FILE = struct_pb2.DESCRIPTOR  # it must be in the pool before the files that import it


@cache
def load_file(path: Path) -> FileDescriptor:
    """Adds a file to the default pool of descriptors, which reflection shows. Returns its descriptor."""
    if path == ENGINE_FILE:
        load_file(SHARED_ENGINE_FILE)
    pool = descriptor_pool.Default()
    parsed = parse_proto(f"antiphon/{path.name}", path.read_text(encoding="utf-8"))
    pool.AddSerializedFile(parsed.SerializeToString())
    file: FileDescriptor = pool.FindFileByName(parsed.name)
    return file


@cache
def message_class(path: Path, name: str) -> type[Message]:
    """Returns the class of the message `name`, without its package, that the file defines."""
    descriptor: Descriptor = load_file(path).message_types_by_name[name]
    kind: type[Message] = message_factory.GetMessageClass(descriptor)
    return kind
