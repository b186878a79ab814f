"""The message classes of the engine service.

`vllm_engine.binpb` is the descriptor set that protoc makes of the `.proto` files beside it; docs/grpc.md has the
command.
"""

from functools import cache
from pathlib import Path

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message

DESCRIPTOR_SET = FileDescriptorSet.FromString(Path(__file__).with_name("vllm_engine.binpb").read_bytes())
ENGINE_PACKAGE, COMMON_PACKAGE = "vllm.grpc.engine", "smg.grpc.common"
ENGINE_SERVICE = f"{ENGINE_PACKAGE}.VllmEngine"

for _file in DESCRIPTOR_SET.file:  # reflection shows the default pool
    descriptor_pool.Default().AddSerializedFile(_file.SerializeToString())


@cache
def message_class(name: str, package: str = ENGINE_PACKAGE) -> type[Message]:
    """Returns the class of a message of the package."""
    descriptor = descriptor_pool.Default().FindMessageTypeByName(f"{package}.{name}")
    kind: type[Message] = message_factory.GetMessageClass(descriptor)
    return kind
