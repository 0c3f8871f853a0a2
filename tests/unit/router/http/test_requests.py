"""Bodies of /v1/completions, and the requests that they mean."""

import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.sampling_params import SamplingParams
from router.http.completions.request import read_request
from router.http.fields import Fields

DEFAULTS = SamplingParams(max_tokens=16)


def test_defaults_are_those_of_openai() -> None:
    request = read_request(Fields({"prompt": "a"}))
    [sent] = request.inputs
    assert (sent.prompt, sent.sampling_params) == ("a", DEFAULTS)
    nulls = dict.fromkeys(("max_tokens", "n", "stop", "logit_bias", "seed", "stream", "suffix"))
    assert read_request(Fields({"prompt": "a", **nulls, "user": "u", "future": [1]})) == request


@pytest.mark.parametrize(
    ("body", "params"),
    [
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", ""]}, {"stop": ("a",)}),
        ({"top_k": -1}, {}),
        ({"top_k": 0}, {}),
        ({"top_k": 5.0}, {"top_k": 5}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"logit_bias": {"7": -3, "8": None}}, {"logit_bias": {7: -3.0}}),
        ({"logprobs": 0}, {"logprobs": 0}),
        ({"logprobs": 2, "echo": True}, {"logprobs": 2, "prompt_logprobs": 2}),
        ({"max_tokens": 0, "echo": True}, {"max_tokens": 1}),
        ({"use_beam_search": True, "n": 2}, {"use_beam_search": True, "n": 2, "temperature": 0.0}),
        (
            {"bad_words": ["x"], "stop_token_ids": [3], "min_tokens": 2, "ignore_eos": True},
            {"bad_words": ("x",), "stop_token_ids": (3,), "min_tokens": 2, "ignore_eos": True},
        ),
    ],
)
def test_fields_become_sampling_parameters(body, params) -> None:
    [sent] = read_request(Fields({"prompt": "a", **body})).inputs
    assert sent.sampling_params == SamplingParams(**{"max_tokens": 16, **params})


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_is_text_or_ids_or_several_of_either(prompt, prompts) -> None:
    request = read_request(Fields({"prompt": prompt})).with_id("mine")
    assert [each.prompt for each in request.inputs] == prompts
    assert [each.request_id for each in request.inputs] == ["mine", "mine-1"][: len(prompts)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 128, "n": 64}, "n"),
        ({"n": 0}, "n"),
        ({"n": "1"}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": 10**400}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": -2}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"bad_words": ["a"] * 5000}, "bad_words"),
        ({"allowed_token_ids": [1] * 200_000}, "allowed_token_ids"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "b"}}, "logit_bias.1"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": 5}, "suffix"),
        ({"suffix": "b", "prompt": [1, 2]}, "prompt"),
        ({"suffix": "b", "echo": True}, "echo"),
        ({"suffix": "b", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_json": 5}, "guided_json"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": 1}, "stream"),
        ({"model": 5}, "model"),
        ({"use_beam_search": True}, "best_of"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(body, field) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_request(Fields({"prompt": "a", **body} if body else {}))
    assert refused.value.field == field
