"""Domain objects survive the wire; the two sides have the same fields."""

import struct
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import (
    CellState,
    CellStatus,
    Delta,
    Finished,
    FinishReason,
    ModelInfo,
    Started,
    TokenLogprobs,
)
from quire.contract.sampling_params import SamplingParams
from quire.contract.time_breakdown import TimeBreakdown
from quire.v1 import common_pb2, inference_pb2
from quire.wire import common as wire

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)

sampling_params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100, width=32),
    top_p=st.floats(0, 1, width=32, exclude_min=True),
    top_k=st.none() | st.integers(1, 2**31 - 1),
    min_p=st.floats(0, 1, width=32),
    seed=st.none() | u64,
    presence_penalty=st.floats(-2, 2, width=32),
    frequency_penalty=st.floats(-2, 2, width=32),
    repetition_penalty=st.floats(0, 100, width=32, exclude_min=True),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100, width=32)),
    allowed_token_ids=ids,
    max_tokens=st.none() | st.integers(9, 2**31 - 1),
    min_tokens=st.integers(0, 9),
    logprobs=st.none() | st.integers(0, 20),
    stop=st.lists(st.text(min_size=1, max_size=8), max_size=4).map(tuple),
    stop_token_ids=ids,
    ignore_eos=st.booleans(),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
)
model_infos = st.builds(
    ModelInfo,
    name=st.text(max_size=8),
    architecture=st.text(max_size=8),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    vocab_size=u32,
    max_model_len=u32,
    eos_token_ids=ids,
    num_parameters=u64,
)
# Some of the fields are 32 bits wide on the wire.
cell_states = st.builds(
    CellState,
    **{field.name: u32 for field in fields(CellState) if field.name != "draining"},
    draining=st.booleans(),
)
token_logprobs = st.builds(
    TokenLogprobs,
    ids,
    st.lists(st.floats(-1e6, 0, width=32), max_size=5).map(tuple),
    u32,
    st.lists(st.text(max_size=5), max_size=5).map(tuple),
)
time_breakdowns = st.builds(TimeBreakdown, **{field.name: u64 for field in fields(TimeBreakdown)})
events = st.one_of(
    st.builds(Started, st.text(max_size=8), u32, u64),
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


@given(sampling_params)
def test_sampling_params(params: SamplingParams) -> None:
    message = wire.sampling_params_to_proto(params)
    parsed = common_pb2.SamplingParams.FromString(message.SerializeToString())
    assert wire.sampling_params_from_proto(parsed) == params


def test_absent_sampling_params_are_the_defaults() -> None:
    assert wire.sampling_params_from_proto(common_pb2.SamplingParams()) == SamplingParams()


def test_sampling_params_have_the_fields_of_their_message() -> None:
    names = {field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields}
    assert names == {field.name for field in fields(SamplingParams)}


def test_sampling_params_from_a_client_are_checked() -> None:
    (nan,) = struct.unpack("<f", b"\x00\x00\xc0\x7f")
    with pytest.raises(InvalidRequestError, match="temperature"):
        wire.sampling_params_from_proto(common_pb2.SamplingParams(temperature=nan))


@given(model_infos)
def test_model_info(info: ModelInfo) -> None:
    message = wire.model_info_to_proto(info)
    assert wire.model_info_from_proto(message) == info
    names = {field.name for field in message.DESCRIPTOR.fields}
    assert names == {field.name for field in fields(ModelInfo)}


@given(cell_states)
def test_cell_state(state: CellState) -> None:
    message = wire.cell_state_to_proto(state)
    assert wire.cell_state_from_proto(message) == state
    names = {field.name for field in message.DESCRIPTOR.fields}
    assert names == {field.name for field in fields(CellState)}


@given(time_breakdowns)
def test_time_breakdown(breakdown: TimeBreakdown) -> None:
    message = wire.time_breakdown_to_proto(breakdown)
    assert wire.time_breakdown_from_proto(message) == breakdown
    names = {field.name for field in message.DESCRIPTOR.fields}
    assert names == {field.name for field in fields(TimeBreakdown)}


@given(
    st.builds(CellStatus, st.text(max_size=8), st.booleans(), st.none() | model_infos, cell_states)
)
def test_cell_status(status: CellStatus) -> None:
    assert wire.cell_status_from_proto(wire.cell_status_to_proto(status)) == status


@given(events)
def test_event(event) -> None:
    message = wire.event_to_proto(event)
    parsed = inference_pb2.GenerateResponse.FromString(message.SerializeToString())
    assert wire.event_from_proto(parsed) == event


def test_an_empty_response_is_no_event() -> None:
    with pytest.raises(ValueError, match="unknown event"):
        wire.event_from_proto(inference_pb2.GenerateResponse())


def test_every_finish_reason_has_its_number() -> None:
    numbers = {wire.finish_reason_to_proto(reason) for reason in FinishReason}
    assert numbers == set(common_pb2.FinishReason.values()) - {0}
    for reason in FinishReason:
        number = wire.finish_reason_to_proto(reason)
        assert wire.finish_reason_from_proto(number) is reason
    assert wire.finish_reason_from_proto(99) is FinishReason.ERROR
