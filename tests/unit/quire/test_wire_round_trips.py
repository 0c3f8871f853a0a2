"""Every message of the protos comes back as the domain object that was sent."""

from collections import defaultdict

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from quire.contract.errors import QuireError
from quire.contract.sessions import Refused
from quire.v1 import common_pb2, inference_pb2, recording_pb2, scheduler_pb2, worker_pb2
from tests.unit.quire.wire_example import Example
from tests.unit.quire.wire_examples import EXAMPLES

FILES = (common_pb2, inference_pb2, recording_pb2, scheduler_pb2, worker_pb2)
# Nothing, or a scalar or two beside the epoch: servicer and caller name them in the call itself.
CALLED_DIRECTLY = {
    "AbortRequest",
    "AbortResponse",
    "AnnounceWorkerResponse",
    "DescribeRequest",
    "DetokenizeResponse",
    "DrainRequest",
    "DrainResponse",
    "HeartbeatRequest",
    "ListModelsRequest",
    "MirrorRequest",
    "OpenRendezvousRequest",
    "OpenRendezvousResponse",
    "ResetRequest",
    "ResetResponse",
    "ResizeRequest",
    "TokenizeResponse",
    "WatchClusterRequest",
}


def messages() -> dict[str, Descriptor]:
    """Every message of the protos by name, but the entries of maps."""
    return {
        name: descriptor
        for file in FILES
        for name, descriptor in file.DESCRIPTOR.message_types_by_name.items()
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_message_comes_back_as_what_was_sent(example: Example) -> None:
    sent = example.write(example.value)
    back = example.read(type(sent).FromString(sent.SerializeToString()))
    assert type(back) is type(example.value)
    if isinstance(back, Refused):  # exceptions are not equal to others of the same fields
        assert back.request_number == example.value.request_number
        assert_same_error(back.error, example.value.error)
    else:
        assert back == example.value


def assert_same_error(error: QuireError, expected: QuireError) -> None:
    assert type(error) is type(expected)
    assert (error.args, vars(error)) == (expected.args, vars(expected))


def test_the_examples_have_every_field_of_every_message() -> None:
    """A field that is added must be sent and read, or the message be exempt for a reason."""
    present: dict[str, set[str]] = defaultdict(set)
    for example in EXAMPLES:
        collect_fields(example.write(example.value), present)
    missing = {
        name: absent
        for name, descriptor in messages().items()
        if name not in CALLED_DIRECTLY
        and (absent := set(descriptor.fields_by_name) - present[name])
    }
    assert not missing


def collect_fields(message: Message, present: dict[str, set[str]]) -> None:
    """Add the fields that a message sets, and those of the messages in it."""
    for each, value in message.ListFields():
        present[message.DESCRIPTOR.name].add(each.name)
        if each.type != FieldDescriptor.TYPE_MESSAGE or each.message_type.GetOptions().map_entry:
            continue
        for part in value if each.is_repeated else [value]:
            collect_fields(part, present)


def test_what_is_called_directly_holds_hardly_anything() -> None:
    assert messages().keys() >= CALLED_DIRECTLY
    for name in CALLED_DIRECTLY:
        held = [each for each in messages()[name].fields if each.name != "epoch"]
        assert len(held) <= 2
        assert all(each.type != FieldDescriptor.TYPE_MESSAGE for each in held)
