"""Prompts of what stands between two texts, in the tokens that each family of models has for it."""

import pytest
from tokenizers import AddedToken

from quire import SamplingParams
from quire.contract.errors import InvalidRequestError
from router.text.tokenize import Tokenizer
from tests.fakes.small_tokenizers import byte_level

# Of each model: tokens before both parts and the middle, then others that end it.
SPECIAL = {
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"),
    "codellama": ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),
    "deepseek": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
}
# Qwen's have text.
NOT_SPECIAL = {"qwen": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")}
BEFORE, AFTER = "def sort(self):\n    ", "\n    return items 中文"


def tokenizer_with(*texts: str, special: bool = True) -> Tokenizer:
    backend = byte_level()
    tokens = [AddedToken(each, special=special, normalized=False) for each in texts]
    if special:
        backend.add_special_tokens(tokens)
    else:
        backend.add_tokens(tokens)
    return Tokenizer(backend, num_threads=1)


@pytest.mark.parametrize("model", [*SPECIAL, *NOT_SPECIAL])
async def test_a_prompt_has_the_tokens_of_its_model(model: str) -> None:
    texts = (SPECIAL | NOT_SPECIAL)[model]
    tokenizer = tokenizer_with(*texts, special=model in SPECIAL)
    assert tokenizer.infill is not None
    before, after = await tokenizer.encode(BEFORE), await tokenizer.encode(AFTER)
    ids = [(await tokenizer.encode(each))[0] for each in texts[:3]]
    prompt = await tokenizer.encode(tokenizer.infill.prompt(BEFORE, AFTER))
    assert list(prompt) == [ids[0], *before, ids[1], *after, ids[2]]


@pytest.mark.parametrize("model", SPECIAL)
async def test_special_tokens_end_the_middle_by_their_ids(model: str) -> None:
    tokenizer = tokenizer_with(*SPECIAL[model])
    assert tokenizer.infill is not None
    params = tokenizer.infill.params(SamplingParams(stop=("x",), stop_token_ids=(7,)))
    ids = tuple(tokenizer.added_tokens[each] for each in SPECIAL[model])
    assert (params.stop, params.stop_token_ids) == (("x",), (7, *ids))


def test_other_tokens_end_it_by_their_text() -> None:
    tokenizer = tokenizer_with(*NOT_SPECIAL["qwen"], special=False)
    assert tokenizer.infill is not None
    params = tokenizer.infill.params(SamplingParams(stop=("x",)))
    assert (params.stop, params.stop_token_ids) == (("x", *NOT_SPECIAL["qwen"]), ())
    with pytest.raises(InvalidRequestError, match="stop"):
        tokenizer.infill.params(SamplingParams(stop=tuple("abcdefghijklmnop")))


@pytest.mark.parametrize(
    "texts", [(), ("<fim_prefix>", "<fim_suffix>"), ("<fim_prefix>", "▁<SUF>")]
)
def test_without_all_three_tokens_there_is_nothing_to_ask_with(texts: tuple[str, ...]) -> None:
    assert tokenizer_with(*texts).infill is None
