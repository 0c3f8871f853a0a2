"""google.rpc.Status, and the details of it that Quire sends, without the package that has them.

An SDK that needs grpc and protobuf alone reads rich errors with these messages. They are of a
descriptor pool of their own, so that a process may have googleapis' as well, and are the same on
the wire: https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "google.rpc"
TYPE_URL = f"type.googleapis.com/{PACKAGE}."

# By number, as in google/rpc/code.proto.
CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
    *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
    *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)

_KINDS = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
}
# The fields of each message, with their numbers: a kind, a message, or many of them. `Any` and
# `Duration` are those of google.protobuf, of which a pool would need the files.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Any": {"type_url": (1, "string"), "value": (2, "bytes")},
    "Duration": {"seconds": (1, "int64"), "nanos": (2, "int32")},
    "Status": {"code": (1, "int32"), "message": (2, "string"), "details": (3, "repeated Any")},
    "ErrorInfo": {"reason": (1, "string"), "domain": (2, "string")},
    "FieldViolation": {"field": (1, "string"), "description": (2, "string")},
    "BadRequest": {"field_violations": (1, "repeated FieldViolation")},
    "RetryInfo": {"retry_delay": (1, "Duration")},
}


def _fields(message: str) -> Iterator[FieldDescriptorProto]:
    for name, (number, type_name) in _MESSAGES[message].items():
        label, _, kind = type_name.rpartition(" ")
        field = FieldDescriptorProto(
            name=name,
            number=number,
            type=_KINDS.get(kind, FieldDescriptorProto.TYPE_MESSAGE),
            label=FieldDescriptorProto.LABEL_REPEATED
            if label
            else FieldDescriptorProto.LABEL_OPTIONAL,
        )
        if kind not in _KINDS:
            field.type_name = f".{PACKAGE}.{kind}"
        yield field


def _make() -> dict[str, type[Message]]:
    file = FileDescriptorProto(name="quire/wire/status", package=PACKAGE, syntax="proto3")
    for name in _MESSAGES:
        file.message_type.add(name=name, field=_fields(name))
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    find = pool.FindMessageTypeByName
    return {name: GetMessageClass(find(f"{PACKAGE}.{name}")) for name in _MESSAGES}


_CLASSES = _make()
# Made at run time, of which type checkers know nothing.
Status: Any = _CLASSES["Status"]
ErrorInfo: Any = _CLASSES["ErrorInfo"]
BadRequest: Any = _CLASSES["BadRequest"]
RetryInfo: Any = _CLASSES["RetryInfo"]


def pack(status: Any, detail: Message) -> None:
    """Append one of the details above to a Status."""
    status.details.add(type_url=TYPE_URL + detail.DESCRIPTOR.name, value=detail.SerializeToString())


def unpack(status: Any, into: Any) -> bool:
    """Read the detail of a Status that is of the type of `into`; return whether there is one.

    Raises:
        DecodeError: it is malformed.
    """
    for packed in status.details:
        if packed.type_url.rpartition("/")[2] == into.DESCRIPTOR.full_name:
            into.ParseFromString(packed.value)
            return True
    return False
