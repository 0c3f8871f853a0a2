"""Random objects of common.proto survive the wire; the two sides have the same fields."""

import struct
from dataclasses import fields

import pytest
from hypothesis import given

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import CellState, FinishReason, ModelInfo
from quire.contract.sampling_params import FILLED_IN, MAX_ITEMS, SamplingParams
from quire.contract.time_breakdown import TimeBreakdown
from quire.v1 import common_pb2
from quire.wire import common as wire
from tests.unit.quire.wire_strategies import (
    cell_states,
    model_infos,
    sampling_params,
    time_breakdowns,
)


@given(sampling_params)
def test_sampling_params(params: SamplingParams) -> None:
    message = wire.sampling_params_to_proto(params)
    parsed = common_pb2.SamplingParams.FromString(message.SerializeToString())
    assert wire.sampling_params_from_proto(parsed) == params


def test_absent_sampling_params_are_the_defaults() -> None:
    found = wire.sampling_params_from_proto(common_pb2.SamplingParams())
    assert found == SamplingParams(max_tokens=None)


def test_sampling_params_have_the_fields_of_their_message() -> None:
    names = {field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields}
    # What is left open is absent there, if that means anything.
    assert names - {"ignore_generation_config"} == (
        {field.name for field in fields(SamplingParams)} - {"left_open"}
    )


def test_what_is_left_open_is_absent_unless_nothing_is() -> None:
    open_fields = frozenset(FILLED_IN)
    message = wire.sampling_params_to_proto(SamplingParams(left_open=open_fields))
    assert not any(message.HasField(name) for name in FILLED_IN)
    assert wire.sampling_params_from_proto(message).left_open == open_fields
    whole = wire.sampling_params_to_proto(SamplingParams())
    assert wire.sampling_params_from_proto(whole).left_open == frozenset()
    some = common_pb2.SamplingParams(temperature=1.0, top_p=1.0)
    found = wire.sampling_params_from_proto(some).left_open
    assert found == open_fields - {"temperature", "top_p"}


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
def test_time_breakdown(account: TimeBreakdown) -> None:
    message = wire.time_breakdown_to_proto(account)
    assert wire.time_breakdown_from_proto(message) == account
    names = {field.name for field in message.DESCRIPTOR.fields}
    assert names == {field.name for field in fields(TimeBreakdown)}


def test_every_finish_reason_has_its_number() -> None:
    numbers = {wire.finish_reason_to_proto(reason) for reason in FinishReason}
    assert numbers == set(common_pb2.FinishReason.values()) - {0}
    for reason in FinishReason:
        number = wire.finish_reason_to_proto(reason)
        assert wire.finish_reason_from_proto(number) is reason
    assert wire.finish_reason_from_proto(99) is FinishReason.ERROR


def test_choices_that_are_too_many_or_too_long_are_refused_before_they_are_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.wire.common.StructuredOutputsParams", None)
    for choice, most in ((["a"] * 1025, 1024), (["a" * 600] * 110, 65536)):
        message = common_pb2.SamplingParams(structured_outputs={"choice": choice})
        with pytest.raises(InvalidRequestError, match=f"^structured_outputs.choice: .*{most}"):
            wire.sampling_params_from_proto(message)


@pytest.mark.parametrize("name", MAX_ITEMS)
def test_a_list_that_is_too_long_is_refused_before_it_is_copied(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = common_pb2.SamplingParams()
    number = MAX_ITEMS[name] + 1
    values = getattr(message, name)
    if name == "logit_bias":
        for token_id in range(number):
            values[token_id] = 1.0
    elif name == "bad_words_token_ids":
        for _ in range(number):
            values.add(token_ids=[1])
    else:
        values.extend("a" if name in ("stop", "bad_words") else 1 for _ in range(number))
    monkeypatch.setattr("quire.wire.common.from_fields", None)
    with pytest.raises(InvalidRequestError, match=f"^{name}: must have at most .* got {number}$"):
        wire.sampling_params_from_proto(message)
