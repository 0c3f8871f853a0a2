"""What a session leaves out, and what it does with values that do not fit."""

import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import FinishReason
from quire.contract.sessions import Refused, StepOutputs
from quire.v1 import common_pb2, scheduler_pb2
from quire.wire import scheduler as wire


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (
            scheduler_pb2.Submission(
                prompt_token_ids=[1], outputs=[scheduler_pb2.SequenceOutput(token_ids=[1])]
            ),
            "seed",
        ),
        (
            scheduler_pb2.Submission(sampling_params=common_pb2.SamplingParams(min_p=2)),
            "min_p",
        ),
    ],
)
def test_a_bad_submission_names_its_field(message: scheduler_pb2.Submission, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        wire.session_request_from_proto(scheduler_pb2.SessionRequest(submission=message))
    assert caught.value.field == field


def test_indices_are_left_out_where_each_request_has_one_sequence() -> None:
    step = wire.step_outputs_to_proto(
        StepOutputs([1, 2], [0, 0], [3, 4], [2], [0], [FinishReason.STOP])
    )
    assert not step.sequence_indices
    assert not step.finished_sequence_indices


def test_messages_of_a_later_version_are_nothing_here() -> None:
    assert wire.session_request_from_proto(scheduler_pb2.SessionRequest()) is None
    assert wire.session_event_from_proto(scheduler_pb2.SessionResponse()) is None


def test_a_refusal_of_an_unknown_reason_is_final() -> None:
    refused = scheduler_pb2.Refused(request_number=3, field="prompt", message="too odd")
    read = wire.session_event_from_proto(scheduler_pb2.SessionResponse(refused=refused))
    assert isinstance(read, Refused)
    assert isinstance(read.error, InvalidRequestError)
    assert read.error.message == "prompt: too odd"
