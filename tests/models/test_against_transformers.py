"""Every family and switch against transformers on tiny random models."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.mpt.modeling_mpt import MptModel, build_mpt_alibi_tensor

from tests.factories import (
    CONFIGS,
    FALLBACKS,
    VOCAB_SIZE,
    llama_config,
    mpt_config,
    random_model,
    rope,
)
from tests.models.driver import Driver, load_runner
from tests.variants import VARIANTS

NUM_TOKENS = 24


def random_prompts(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths
    ]


def reference_tokens(
    config: PreTrainedConfig, prompt: list[int], num_tokens: int = NUM_TOKENS
) -> list[int]:
    output = random_model(config).generate(
        torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False, eos_token_id=None
    )
    return output[0, len(prompt) :].tolist()


def logits_of_prefixes(directory: Path, text: list[int]) -> torch.Tensor:
    """Return our logits after every prefix of a text, all run in one step."""
    driver = Driver(load_runner(directory))
    lengths = range(1, len(text) + 1)
    for length in lengths:
        driver.add(length, text[:length])
    driver.step()
    return torch.stack([driver.logits[length] for length in lengths])


@pytest.mark.parametrize("name", [*VARIANTS, *FALLBACKS])
def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    config = VARIANTS[name] if name in VARIANTS else FALLBACKS[name]()
    random_model(config).save_pretrained(tmp_path)
    prompts = random_prompts([41, 1, 17])
    expected = [reference_tokens(config, prompt) for prompt in prompts]
    assert Driver(load_runner(tmp_path)).generate(prompts, NUM_TOKENS) == expected
    assert len({token for tokens in expected for token in tokens}) > 5


def test_longrope_beyond_the_original_length(tmp_path: Path) -> None:
    config = llama_config(
        rope_parameters=rope(
            "longrope",
            factor=8.0,
            short_factor=[1.0] * 8,
            long_factor=[2.0 + 0.5 * i for i in range(8)],
            original_max_position_embeddings=32,
        )
    )
    random_model(config).save_pretrained(tmp_path)
    [prompt] = random_prompts([41])
    expected = reference_tokens(config, prompt)
    assert Driver(load_runner(tmp_path)).generate([prompt], NUM_TOKENS) == [expected]


@pytest.mark.parametrize("name", VARIANTS)
def test_float32_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Greedy tokens alone would hardly show a small summand, such as a bias of the head."""
    model = random_model(VARIANTS[name])
    model.save_pretrained(tmp_path)
    [text] = random_prompts([48])
    with torch.inference_mode():
        expected = model(torch.tensor([text])).logits[0]
    ours = logits_of_prefixes(tmp_path, text)
    assert torch.allclose(ours, expected, rtol=0.0, atol=1e-4 * expected.abs().max().item())


def test_mpt_with_other_slopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_configured(model: MptModel, num_heads: int, length: int, **_: object) -> torch.Tensor:
        return build_mpt_alibi_tensor(num_heads, length, model.config.attn_config.alibi_bias_max)

    monkeypatch.setattr(MptModel, "build_mpt_alibi_tensor", as_configured)
    config = mpt_config(attn_config={"alibi_bias_max": 3})
    random_model(config).save_pretrained(tmp_path)
    [prompt] = random_prompts([41])
    expected = reference_tokens(config, prompt)
    assert Driver(load_runner(tmp_path)).generate([prompt], NUM_TOKENS) == [expected]
    monkeypatch.undo()
    assert reference_tokens(config, prompt) != expected


@pytest.mark.parametrize("name", [*CONFIGS, *FALLBACKS])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_error_is_at_most_twice_that_of_transformers(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    config = (CONFIGS | FALLBACKS)[name]()
    model = random_model(config).to(dtype)
    model.save_pretrained(tmp_path)
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    [text] = random_prompts([64])
    with torch.inference_mode():
        reference = exact(torch.tensor([text])).logits[0]
        theirs = model(torch.tensor([text])).logits[0].float()

    ours = logits_of_prefixes(tmp_path, text)
    assert (ours - reference).abs().max() <= 2 * (theirs - reference).abs().max()
    assert (ours - reference).pow(2).mean() <= 4 * (theirs - reference).pow(2).mean()
