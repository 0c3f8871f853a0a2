"""Every refusal names field, limit and value; whatever passes can be run."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import DetokenizeInput, GenerateInput, ResumeInput, TokenizeInput
from quire.contract.outputs import ModelInfo
from quire.contract.sampling_params import SamplingParams
from quire.contract.structured_outputs import StructuredOutputsParams
from router.requests.time_ledger import TimeLedger
from router.requests.validate import Validator

MODEL = ModelInfo("m", "LlamaForCausalLM", "float32", 100, 16, (1,), 0)


class WordCodec:
    """A token per word, its length."""

    def __init__(self) -> None:
        self.num_encoded = 0
        self.added_tokens: dict[str, int] = {}

    async def encode(self, text: str, add_special_tokens: bool = True) -> Sequence[int]:
        self.num_encoded += 1
        return [len(word) for word in text.split()]

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return " ".join("x" * token_id for token_id in token_ids)

    def detokenizer(self, context: Sequence[int], skip_special_tokens: bool):
        raise AssertionError("validation makes no text")


async def find_model(name: str, numerics_id: str | None, with_vectors: bool) -> ModelInfo:
    return MODEL


def make() -> tuple[Validator, WordCodec]:
    codec = WordCodec()
    return Validator(codec, find_model, max_prompt_bytes=1000), codec


def request(
    prompt: str | Sequence[int] = "a b c", request_id: str = "", **params: object
) -> GenerateInput:
    return GenerateInput(prompt, SamplingParams(**params), request_id)


@pytest.mark.parametrize(
    ("given", "field", "limit", "value"),
    [
        (request(""), "prompt", "1", "0"),
        (request(()), "prompt", "1", "0"),
        (request(" \n"), "prompt", "1", "0"),
        (request("x" * 1001), "prompt", "1000", "1001"),
        (request("é" * 501), "prompt", "1000", "1002"),
        (request("x " * 16), "prompt", "15", "16"),
        (request((2,) * 16), "prompt", "15", "16"),
        (request((2, 100)), "prompt", "100", "100"),
        (request((2, -1)), "prompt", "100", "-1"),
        (request("x" * 100), "prompt", "100", "100"),
        (request(max_tokens=20, min_tokens=14), "min_tokens", "13", "14"),
        (request(stop_token_ids=(100,)), "stop_token_ids", "100", "100"),
        (request(request_id="x" * 129), "request_id", "128", "129"),
    ],
)
async def test_refusal_names_field_limit_and_value(
    given: GenerateInput, field: str, limit: str, value: str
) -> None:
    validator, _ = make()
    with pytest.raises(InvalidRequestError) as caught:
        await validator.generate(given, TimeLedger())
    assert caught.value.field == field
    assert limit in caught.value.description
    assert value in caught.value.description


async def test_beams_hand_over_no_more_than_fits_a_message() -> None:
    async def find_long_model(name: str, numerics_id: str | None, with_vectors: bool) -> ModelInfo:
        return replace(MODEL, max_model_len=2**20)

    validator = Validator(WordCodec(), find_long_model, max_prompt_bytes=1000)
    beams = {"use_beam_search": True, "temperature": 0.0, "n": 4}
    await validator.generate(request(max_tokens=2**17, logprobs=6, **beams), TimeLedger())
    with pytest.raises(InvalidRequestError, match=r"max_tokens.*4194304.*4718592"):
        await validator.generate(request(max_tokens=2**17, logprobs=7, **beams), TimeLedger())
    await validator.generate(request(max_tokens=2**17, logprobs=7, n=4), TimeLedger())


async def test_bad_words_are_refused_by_their_own_name() -> None:
    validator, _ = make()
    valid = await validator.generate(request(bad_words=("aa bbb", "x" * 200)), TimeLedger())
    assert valid.sampling_params.bad_words_token_ids == ((2, 3),)  # 200 is no token of the model
    most = tuple((1 + i % 90, 1 + i // 90) for i in range(512))
    with pytest.raises(InvalidRequestError, match=r"bad_words: as tokens: .*512.*513"):
        await validator.generate(request(bad_words=("a",), bad_words_token_ids=most), TimeLedger())


async def test_a_text_that_is_too_long_is_never_tokenized() -> None:
    validator, codec = make()
    with pytest.raises(InvalidRequestError):
        await validator.generate(request("x" * 2**21), TimeLedger())
    with pytest.raises(InvalidRequestError):
        await validator.tokenize(TokenizeInput("x" * 2**21))
    assert codec.num_encoded == 0


@pytest.mark.parametrize(("max_tokens", "capped"), [(None, 13), (5, 5), (14, 13), (17, 13)])
async def test_output_is_capped_to_the_models_length(max_tokens: int | None, capped: int) -> None:
    validator, _ = make()
    valid = await validator.generate(request("a bb ccc", max_tokens=max_tokens), TimeLedger())
    assert valid.prompt_token_ids == (1, 2, 3)
    assert valid.sampling_params.max_tokens == capped


@pytest.mark.parametrize(("max_tokens", "kept"), [(None, 13), (14, 14)])
async def test_what_is_resumed_keeps_its_length(max_tokens: int | None, kept: int) -> None:
    validator, _ = make()
    resumed = request("a bb ccc", "mine", max_tokens=max_tokens)
    valid = await validator.resume(ResumeInput(resumed, 1, "", ""), TimeLedger())
    assert valid.sampling_params.max_tokens == kept


async def test_longest_prompt_leaves_room_for_one_token() -> None:
    validator, _ = make()
    valid = await validator.generate(request((99,) * 15), TimeLedger())
    assert valid.sampling_params.max_tokens == 1


async def test_request_ids_are_made_and_kept() -> None:
    validator, _ = make()
    made = {(await validator.generate(request(), TimeLedger())).request_id for _ in range(10)}
    assert len(made) == 10
    assert "" not in made
    assert (await validator.generate(request(request_id="mine"), TimeLedger())).request_id == "mine"


async def test_detokenize_has_the_same_limits() -> None:
    validator, _ = make()
    assert await validator.detokenize(DetokenizeInput([1, 2])) == "x xx"
    with pytest.raises(InvalidRequestError, match="token_ids: at most 16 tokens, got 17"):
        await validator.detokenize(DetokenizeInput([1] * 17))
    with pytest.raises(InvalidRequestError, match=r"token_ids: .*\[0, 100\), got 100"):
        await validator.detokenize(DetokenizeInput([100]))


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "num_kept"),
    [(10, 4, 10), (14, 4, 12), (10, 16, 10), (10, 500, 10), (40, 500, 15), (40, None, 15)],
)
async def test_all_that_fits_of_a_prompt_is_kept(
    num_tokens: int, max_tokens: int | None, num_kept: int
) -> None:
    ids = tuple(range(2, 2 + num_tokens))
    given = request(ids, truncate_prompt_tokens=-1, max_tokens=max_tokens)
    valid = await make()[0].generate(given, TimeLedger())
    assert valid.prompt_token_ids == ids[-num_kept:]


async def test_an_error_of_a_structural_tag_names_it() -> None:
    async def check(grammar: StructuredOutputsParams, model: ModelInfo) -> None:
        raise InvalidRequestError("structured_outputs.grammar", "must be one that compiles")

    validator = Validator(WordCodec(), find_model, max_prompt_bytes=1000, check_grammar=check)
    mark = "x" * 12_000  # as a regex it is several times as long
    tags = [{"begin": mark, "content": {"type": "any_text"}, "end": "y"}]
    long = {"format": {"type": "triggered_tags", "triggers": [mark], "tags": tags}}
    for tag in ('{"format": {"type": "any_text"}}', json.dumps(long)):
        asked = StructuredOutputsParams(structural_tag=tag)
        with pytest.raises(InvalidRequestError, match=r"^structured_outputs.structural_tag: "):
            await validator.generate(request(structured_outputs=asked), TimeLedger())
    asked = StructuredOutputsParams(grammar="start: 'a'")
    with pytest.raises(InvalidRequestError, match=r"^structured_outputs.grammar: must be one"):
        await validator.generate(request(structured_outputs=asked), TimeLedger())
