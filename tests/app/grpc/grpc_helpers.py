"""A client of a server's gRPC port, which knows its messages by reflection only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import msgspec
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict, ParseDict
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from antiphon.app.grpc.statuses import ERROR_BODY_KEY
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

Json = dict[str, Any]
SERVICE = "vllm.grpc.engine.VllmEngine"
CALL_TIMEOUT_S = HANG_TIMEOUT_S


class GrpcClient:
    """Calls methods by name. Requests are JSON; replies are messages."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.database = ProtoReflectionDescriptorDatabase(channel)
        self._pool = descriptor_pool.DescriptorPool(self.database)

    def call(
        self, method: str, request: Json, *, timeout: float = CALL_TIMEOUT_S, key: str = "", **headers: str
    ) -> Any:
        """Calls `package.Service/Method`: returns the reply, or the call of a stream."""
        service, _, name = method.rpartition("/")
        descriptor = self._pool.FindServiceByName(service).FindMethodByName(name)
        message = ParseDict(request, message_factory.GetMessageClass(descriptor.input_type)())
        kind = message_factory.GetMessageClass(descriptor.output_type)
        build = self.channel.unary_stream if descriptor.server_streaming else self.channel.unary_unary
        run = build(f"/{method}", type(message).SerializeToString, kind.FromString)
        return run(
            message,
            timeout=timeout,
            metadata=(*((("authorization", f"Bearer {key}"),) if key else ()), *headers.items()),
        )

    def read_error(self, method: str, request: Json, **options: Any) -> tuple[grpc.StatusCode, Json]:
        """Returns the status of a call that fails, and the error in its metadata."""
        try:
            reply = self.call(method, request, **options)
            list(reply) if hasattr(reply, "__next__") else None
        except grpc.RpcError as error:
            return read_status(error)
        raise AssertionError(f"{method} did not fail")


def read_status(error: Any) -> tuple[grpc.StatusCode, Json]:
    """Returns the status of an error and the JSON error in its metadata."""
    metadata = dict(error.trailing_metadata())
    body: Json = msgspec.json.decode(metadata.get(ERROR_BODY_KEY, b'{"error": {}}'))
    return error.code(), body["error"]


def as_json(message: Any) -> Json:
    """Returns the default JSON form of a message."""
    value: Json = MessageToDict(message)
    return value


@contextmanager
def connect(server: RunningServer, index: int = 0) -> Iterator[GrpcClient]:
    """Connects a client to a server's gRPC port, or to that of the model with this index."""
    with grpc.insecure_channel(f"127.0.0.1:{server.context.grpc_ports[index]}") as channel:
        yield GrpcClient(channel)
