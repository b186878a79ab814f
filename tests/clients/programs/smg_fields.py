"""Prints the fields of SMG's engine service: {message: {field: [number, type, label]}}."""

import json

from google.protobuf import descriptor_pb2
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

messages = {}
for module in (common_pb2, vllm_engine_pb2):
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        messages[message.name] = {field.name: [field.number, field.type, field.label] for field in message.field}
print(json.dumps(messages))
