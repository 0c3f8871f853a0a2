"""A server that speaks the protos of the previous release: it knows none of the fields since.

`previous_release.binpb` is what `protoc --descriptor_set_out` made of them. It is made anew when a
release is published, and whenever the protocol version is raised.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from quire.rpc.handlers import behavior_of, rebuild

_FILES = descriptor_pb2.FileDescriptorSet.FromString(
    Path(__file__).with_suffix(".binpb").read_bytes()
)
_POOL = descriptor_pool.DescriptorPool()
for _file in _FILES.file:
    _POOL.Add(_file)


def as_understood(full_name: str, data: bytes) -> bytes:
    """Return what the previous release makes of a message: its fields, and no other."""
    kind = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))
    message = kind.FromString(data)
    message.DiscardUnknownFields()
    return message.SerializeToString()


class SpeaksPreviousRelease(grpc.aio.ServerInterceptor):
    """Has a server of the present code read and write what the previous release would.

    Args:
        service: a service of the protos, whose methods are looked up in it.
    """

    def __init__(self, service: Any) -> None:
        self._service = service
        self.dropped: set[str] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(handler_call_details)
        name = handler_call_details.method.rpartition("/")[2]
        method = self._service.methods_by_name.get(name)
        if handler is None or method is None:
            return handler
        parse = handler.request_deserializer

        def read(data: bytes) -> Any:
            return parse(as_understood(method.input_type.full_name, data))

        def write(message: Message) -> bytes:
            data = message.SerializeToString()
            known = as_understood(method.output_type.full_name, data)
            if len(known) < len(data):
                self.dropped.add(name)
            return known

        rebuilt = rebuild(handler, behavior_of(handler), read)
        return rebuilt._replace(response_serializer=write)
