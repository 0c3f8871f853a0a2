"""Grammars of vLLM's engine service are those of Quire."""

from typing import Any

import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.facades import vllm_engine_pb2 as pb
from quire.wire.vllm_engine import generate_input_from_proto

CONSTRAINTS: list[tuple[dict[str, Any], StructuredOutputsParams | None]] = [
    ({}, None),
    ({"json_schema": '{"type": "null"}'}, StructuredOutputsParams(json='{"type": "null"}')),
    ({"json_object": True}, StructuredOutputsParams(json_object=True)),
    ({"json_object": False}, None),
    ({"regex": "a+"}, StructuredOutputsParams(regex="a+")),
    ({"grammar": 'start: "a"'}, StructuredOutputsParams(grammar='start: "a"')),
    (
        {"choice": pb.ChoiceConstraint(choices=["a", "b"])},
        StructuredOutputsParams(choice=("a", "b")),
    ),
]


@pytest.mark.parametrize(("constraint", "expected"), CONSTRAINTS)
def test_constraints(constraint: dict[str, Any], expected: StructuredOutputsParams | None) -> None:
    message = pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(**constraint))
    assert generate_input_from_proto(message).sampling_params.structured_outputs == expected


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ({"structural_tag": "{}"}, "^structural_tag: must be absent"),
        ({"choice": pb.ChoiceConstraint(choices=["a"] * 2000)}, "choice: must have at most 1024"),
        ({"regex": ""}, "regex: must be at least 1 character"),
    ],
)
def test_what_is_no_constraint(constraint: dict[str, Any], reason: str) -> None:
    message = pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(**constraint))
    with pytest.raises(InvalidRequestError, match=reason):
        generate_input_from_proto(message)
