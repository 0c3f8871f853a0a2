"""Random objects of inference.proto survive the wire; what no message can hold is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import DetokenizeInput, GenerateInput, TokenizeInput
from quire.contract.outputs import CellStatus, Delta, Event, Finished, FinishReason, Started
from quire.contract.sampling_params import SamplingParams
from quire.v1 import inference_pb2
from quire.wire import inference as wire
from tests.unit.quire.wire_strategies import (
    cell_states,
    model_infos,
    time_breakdowns,
    token_logprobs,
    u32,
    u64,
)

events = st.one_of(
    st.builds(
        Started,
        st.text(max_size=8),
        u32,
        u64,
        st.text(max_size=8),
        st.text(max_size=8),
    ),
    st.builds(
        Delta,
        st.text(max_size=8),
        st.lists(u32, max_size=5).map(tuple),
        st.lists(token_logprobs, max_size=2).map(tuple),
    ),
    st.builds(
        Finished,
        st.sampled_from(FinishReason),
        u32,
        st.none() | st.text(max_size=8),
        time_breakdown=st.none() | time_breakdowns,
    ),
)


@given(
    st.builds(CellStatus, st.text(max_size=8), st.booleans(), st.none() | model_infos, cell_states)
)
def test_cell_status(status: CellStatus) -> None:
    assert wire.cell_status_from_proto(wire.cell_status_to_proto(status)) == status


@given(events)
def test_event(event: Event) -> None:
    message = wire.event_to_proto(event)
    parsed = inference_pb2.GenerateResponse.FromString(message.SerializeToString())
    assert wire.event_from_proto(parsed) == event


def test_an_empty_response_is_no_event() -> None:
    with pytest.raises(ValueError, match="unknown event"):
        wire.event_from_proto(inference_pb2.GenerateResponse())


def test_special_tokens_are_added_and_skipped_unless_asked_otherwise() -> None:
    tokenize = inference_pb2.TokenizeRequest(text="text")
    assert wire.tokenize_input_from_proto(tokenize) == TokenizeInput("text", "", True)
    detokenize = inference_pb2.DetokenizeRequest(token_ids=[5])
    assert wire.detokenize_input_from_proto(detokenize) == DetokenizeInput([5], "", True)


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_token_ids_that_no_message_holds_name_their_field(token_id: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"prompt: .*got {token_id}"):
        wire.generate_input_to_proto(GenerateInput([5, token_id], SamplingParams()))
    with pytest.raises(InvalidRequestError, match=f"token_ids: .*got {token_id}"):
        wire.detokenize_input_to_proto(DetokenizeInput([token_id]))
