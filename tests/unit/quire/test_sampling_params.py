import asyncio
import copy
import math
import pickle
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from quire import AsyncClient
from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import Event, Finished, FinishReason, Started
from quire.contract.sampling_params import (
    FILLED_IN,
    GREEDY_BELOW,
    MAX_SEED,
    MAX_TOKENS,
    BeamSearchParams,
    SamplingParams,
)
from quire.sdk.calls import chat_input, generate_input


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", -0.1, ("[0, 100]", "-0.1")),
        ("temperature", 100.5, ("[0, 100]", "100.5")),
        ("temperature", math.nan, ("[0, 100]", "nan")),
        ("temperature", math.inf, ("[0, 100]", "inf")),
        ("top_p", 0.0, ("(0, 1]", "0.0")),
        ("top_p", 1.01, ("(0, 1]", "1.01")),
        ("top_p", math.nan, ("(0, 1]", "nan")),
        ("min_p", -0.1, ("[0, 1]", "-0.1")),
        ("min_p", 2.0, ("[0, 1]", "2.0")),
        ("top_k", -2, (f"[1, {MAX_TOKENS}]", "-2")),
        ("seed", -2, (f"[0, {MAX_SEED}]", "-2")),
        ("seed", 2**64, (f"[0, {MAX_SEED}]", str(2**64))),
        ("presence_penalty", 2.5, ("[-2, 2]", "2.5")),
        ("presence_penalty", math.nan, ("[-2, 2]", "nan")),
        ("frequency_penalty", -2.5, ("[-2, 2]", "-2.5")),
        ("repetition_penalty", 0.0, ("(0, 100]", "0.0")),
        ("repetition_penalty", math.inf, ("(0, 100]", "inf")),
        ("logit_bias", {-1: 0.0}, ("[0,", "-1")),
        ("logit_bias", {5: 100.5}, ("[-100, 100]", "100.5")),
        ("logit_bias", dict.fromkeys(range(1025), 0.0), ("1024", "1025")),
        ("allowed_token_ids", (-1,), ("[0,", "-1")),
        ("min_tokens", -1, ("[0,", "-1")),
        ("logprobs", -1, ("[0, 20]", "-1")),
        ("logprobs", 21, ("[0, 20]", "21")),
        ("max_tokens", 0, (f"[1, {MAX_TOKENS}]", "0")),
        ("max_tokens", 2**31, (f"[1, {MAX_TOKENS}]", str(2**31))),
        ("stop", ("x",) * 17, ("16", "17")),
        ("stop", ("",), ("256", "0")),
        ("stop", ("x" * 257,), ("256", "257")),
        ("bad_words", "word", ("tuple of strings", "'word'")),
        ("stop_token_ids", (1,) * 65, ("64", "65")),
        ("stop_token_ids", (-1,), ("[0,", "-1")),
    ],
)
def test_refusal_names_field_limit_and_value(field: str, value: object, words: tuple[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    for word in words:
        assert word in caught.value.description


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("temperature", 100.0),
        ("top_p", 1e-6),
        ("min_p", 1.0),
        ("top_k", 1),
        ("seed", 0),
        ("seed", MAX_SEED),
        ("max_tokens", 1),
        ("presence_penalty", -2.0),
        ("frequency_penalty", 2.0),
        ("repetition_penalty", 100.0),
        ("logit_bias", {0: -100.0}),
        ("min_tokens", 0),
        ("logprobs", 0),
        ("logprobs", 20),
        ("stop", ("x" * 256,) * 16),
        ("stop_token_ids", (0,) * 64),
    ],
)
def test_limits_are_allowed(field: str, value: object) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    with pytest.raises(InvalidRequestError, match=r"min_tokens: must be in \[0, 5\], got 6"):
        SamplingParams(min_tokens=6, max_tokens=5)


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("top_k", -1, None),
        ("top_k", 0, None),
        ("seed", -1, None),
        ("stop", None, ()),
        ("stop", "\n\n", ("\n\n",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop_token_ids", [7], (7,)),
        ("stop_token_ids", None, ()),
        ("bad_words", ["word"], ("word",)),
        ("bad_words", None, ()),
        ("bad_words_token_ids", [[1, 2], [3]], ((1, 2), (3,))),
        ("allowed_token_ids", None, ()),
        ("logit_bias", None, {}),
    ],
)
def test_what_vllms_users_write_is_taken(field: str, given: object, kept: object) -> None:
    assert getattr(SamplingParams(**{field: given}), field) == kept


def test_max_tokens_is_vllms_unless_given() -> None:
    assert SamplingParams().max_tokens == 16
    assert SamplingParams(max_tokens=None).max_tokens is None


@pytest.mark.parametrize("tiny", [5e-324, 1e-12, 1e-6, math.nextafter(1e-5, 0.0)])
def test_a_temperature_that_is_all_but_0_is_0(tiny: float) -> None:
    assert SamplingParams(temperature=tiny).temperature == 0.0
    # What needs greedy decoding has it then.
    params = SamplingParams(n=2, use_beam_search=True, temperature=tiny)
    assert params == SamplingParams(n=2, use_beam_search=True, temperature=0.0)


@pytest.mark.parametrize("temperature", [1e-5, math.nextafter(1e-5, 1.0), 0.01])
def test_a_temperature_that_draws_stays(temperature: float) -> None:
    assert GREEDY_BELOW == 1e-5, "vLLM's"
    assert SamplingParams(temperature=temperature).temperature == temperature


@pytest.mark.parametrize("temperature", [-1e-6, -5e-324])
def test_a_temperature_below_0_is_refused_however_small(temperature: float) -> None:
    with pytest.raises(InvalidRequestError, match=r"temperature: must be in \[0, 100\], got -"):
        SamplingParams(temperature=temperature)


def test_a_field_may_be_set_and_is_checked_as_it_is_when_given() -> None:
    params = SamplingParams(left_open=frozenset(FILLED_IN))
    params.max_tokens = 5
    params.stop = "x"  # type: ignore[assignment]
    params.temperature = GREEDY_BELOW / 2
    assert params == SamplingParams(max_tokens=5, stop=("x",), temperature=0.0)
    assert params.left_open == set(FILLED_IN) - {"max_tokens", "temperature"}
    before = copy.deepcopy(params)
    with pytest.raises(InvalidRequestError, match=r"top_p: must be in \(0, 1\], got 3"):
        params.top_p = 3.0
    with pytest.raises(InvalidRequestError, match=r"min_tokens: must be in \[0, 5\], got 6"):
        params.min_tokens = 6
    with pytest.raises(AttributeError, match="SamplingParams has no max_new_tokens"):
        params.max_new_tokens = 5
    assert params == before and params.left_open == before.left_open
    beams = BeamSearchParams(beam_width=2, max_tokens=4)
    beams.max_tokens = 8
    assert beams.sampling_params().max_tokens == 8


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        replace,
        SamplingParams.clone,
        lambda params: pickle.loads(pickle.dumps(params)),
        lambda params: generate_input("", params, {}).sampling_params,
        lambda params: chat_input([], params, {}).sampling_params,
    ],
)
def test_a_copy_and_a_request_keep_what_they_had(copied: object) -> None:
    bias = {1: 2.0}
    params = SamplingParams(n=2, logit_bias=bias, left_open=frozenset({"top_k"}))
    own = copied(params)  # type: ignore[operator]
    assert own == params and own.left_open == params.left_open
    params.n = 3
    params.top_k = 4
    bias[1] = 3.0
    assert (own.n, own.top_k, own.logit_bias) == (2, None, {1: 2.0})
    assert own.left_open == {"top_k"} and params.left_open == frozenset()
    own.n = 4
    assert params.n == 3


@pytest.mark.parametrize(
    ("name", "asked"),
    [("generate", "x"), ("generate_all", "x"), ("chat", []), ("chat_all", [])],
)
async def test_a_call_for_asyncio_keeps_what_it_had_before_its_task_begins(
    name: str, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def events(client: AsyncClient, stream: Any, _: Any) -> AsyncGenerator[Event, None]:
        # As its number of tokens, which the answer tells.
        yield Started("1", stream.request.sampling_params.max_tokens, seed=0)
        yield Finished(FinishReason.STOP, 0)

    monkeypatch.setattr(AsyncClient, "_events", events)
    params, tasks = SamplingParams(), []
    async with AsyncClient("127.0.0.1:1") as client:
        for max_tokens in (3, 9):
            params.max_tokens = max_tokens
            tasks.append(asyncio.create_task(getattr(client, name)(asked, params)))
        found = await asyncio.gather(*tasks)
    answers = [each[0] if isinstance(each, list) else each for each in found]
    assert [each.num_prompt_tokens for each in answers] == [3, 9]


def test_a_copy_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(allowed_token_ids=tuple(range(50)), logit_bias={1: 2.0})
    expected = replace(params, seed=7)
    monkeypatch.delattr(SamplingParams, "__post_init__")
    monkeypatch.setattr(SamplingParams, "__init__", None)
    own, seeded = params.clone(), params.with_seed(7)
    assert (own, seeded, params.seed) == (params, expected, None)
    assert own.logit_bias is not params.logit_bias is not seeded.logit_bias
