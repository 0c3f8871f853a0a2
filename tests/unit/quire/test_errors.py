"""An error crosses the wire and comes out the same."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from quire import Client
from quire.contract import errors
from quire.rpc.call_errors import error_from_rpc
from quire.wire.errors import error_to_status
from quire.wire.status import CODES

EXAMPLES = [
    errors.InvalidRequestError("top_p", "must be in (0, 1], got 2.0"),
    errors.ModelNotFoundError("model: gpt-17 is not served here; served: demo"),
    errors.RequestExistsError("request_id: mine is in use"),
    errors.OverloadedError("at most 4096 requests wait", 1500),
    errors.UnavailableError("no scheduler is reachable (waited 10 s)"),
    errors.DeadlineExceededError("too late"),
]


class FailedCall(grpc.RpcError):
    """What grpc raises for a call that ended with a status."""

    def __init__(
        self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, bytes], ...] = ()
    ):
        super().__init__()
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._metadata


def read(status: Any) -> status_pb2.Status:
    """A status as a client of googleapis' messages has it."""
    return status_pb2.Status.FromString(status.SerializeToString())


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_error_comes_back_as_itself(error: errors.QuireError) -> None:
    status = rpc_status.to_status(error_to_status(error))
    back = error_from_rpc(FailedCall(status.code, status.details, status.trailing_metadata))
    assert type(back) is type(error)
    assert back.message == error.message
    assert vars(back) == vars(error)


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if isinstance(kind, type)])
def test_every_error_has_a_code_and_a_reason(kind: type[errors.QuireError]) -> None:
    assert issubclass(kind, errors.QuireError)
    assert kind.code in code_pb2.Code.keys()  # noqa: SIM118 - an enum wrapper, not a dict
    assert kind.reason.isupper()
    assert kind.__doc__


def test_every_reason_is_one_class() -> None:
    """The class is read from it."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len({kind.reason for kind in kinds}) == len(kinds)


def test_reason_travels_as_error_info() -> None:
    """As googleapis' own messages read it."""
    sent = error_to_status(errors.ModelLoadError("model: /m has no safetensors"))
    status = read(sent)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("MODEL_UNUSABLE", "quire")


def test_details_are_those_of_googleapis() -> None:
    """The messages of quire.wire.status are not theirs, but the same on the wire."""
    invalid = error_to_status(errors.InvalidRequestError("top_p", "must be in (0, 1], got 2.0"))
    bad_request = error_details_pb2.BadRequest()
    assert read(invalid).details[1].Unpack(bad_request)
    assert [(each.field, each.description) for each in bad_request.field_violations] == [
        ("top_p", "must be in (0, 1], got 2.0")
    ]
    busy = error_to_status(errors.OverloadedError("busy", 61_500))
    retry = error_details_pb2.RetryInfo()
    assert read(busy).details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 61_500
    assert dict(code_pb2.Code.items()) == {name: number for number, name in enumerate(CODES)}


@pytest.mark.parametrize("content", [b"\xff", b"\x1a\x02\x0a\x05"], ids=["bytes", "cut"])
def test_a_malformed_status_leaves_the_code(content: bytes) -> None:
    metadata = (("grpc-status-details-bin", content),)
    error = error_from_rpc(FailedCall(grpc.StatusCode.UNAVAILABLE, "gone", metadata))
    assert (type(error), error.message) == (errors.UnavailableError, "gone")


def test_a_message_too_large_for_the_transport_is_an_invalid_request() -> None:
    call = FailedCall(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max")
    error = error_from_rpc(call)
    assert isinstance(error, errors.InvalidRequestError)
    assert error.field == "request"


def test_an_unknown_failure_is_still_ours() -> None:
    error = error_from_rpc(FailedCall(grpc.StatusCode.INTERNAL, "internal error 12ab"))
    assert type(error) is errors.QuireError
    assert error.message == "internal error 12ab"


def test_half_of_a_surrogate_pair_is_refused_by_every_call() -> None:
    with Client("127.0.0.1:1") as client:
        calls: list[Callable[[], object]] = [
            lambda: client.generate("a\ud800"),
            lambda: client.embed("a\ud800"),
            lambda: client.tokenize("a\ud800"),
            lambda: client.chat([{"role": "user", "content": "a\ud800"}]),
        ]
        for call in calls:
            with pytest.raises(errors.InvalidRequestError, match=r"^text: must be Unicode, got a "):
                call()
