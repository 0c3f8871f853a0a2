"""Vectors of prompts: transformers' last hidden states, and the same bits on every path."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.outputs import ModelInfo
from quire.contract.pooling_params import PoolingParams
from quire.contract.workers import LoadSpec
from tests.factories import (
    FALLBACKS,
    VOCAB_SIZE,
    edit_config,
    llama_config,
    random_model,
    save_model,
)
from tests.models.driver import GREEDY, Driver, load_runner
from tests.models.linked_ranks import run_ranks
from tests.variants import VARIANTS
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup
from worker_svc.sampling.pooling import normalize

RAW, SCALED = PoolingParams(normalize=False), PoolingParams()
LENGTH = 45
TARGET = 1000


def make_prompt(length: int = LENGTH, seed: int = 2) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, length).tolist()


def read(vector: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(vector, "<f4").copy())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path, llama_config())


def alone(directory: Path, pooling: PoolingParams = RAW, *, dtype: str = "bfloat16") -> bytes:
    driver = Driver(load_runner(directory, dtype=dtype))
    driver.add(TARGET, make_prompt(), pooling=pooling)
    driver.step()
    return driver.vectors[TARGET]


@pytest.mark.parametrize("name", [*VARIANTS, *FALLBACKS])
def test_vectors_are_the_last_hidden_states_of_transformers(name: str, tmp_path: Path) -> None:
    config = VARIANTS[name] if name in VARIANTS else FALLBACKS[name]()
    reference = random_model(config)
    reference.save_pretrained(tmp_path)
    prompts = [make_prompt(), [5], make_prompt(17, seed=3)]
    runner = load_runner(tmp_path)
    driver = Driver(runner)
    for sequence_id, prompt in enumerate(prompts):
        driver.add(sequence_id, prompt, pooling=RAW)
        driver.add(10 + sequence_id, prompt, pooling=SCALED)
    driver.step()
    with torch.inference_mode():
        for sequence_id, prompt in enumerate(prompts):
            states = reference.base_model(torch.tensor([prompt])).last_hidden_state
            expected = states[0, -1]
            found = read(driver.vectors[sequence_id])
            assert len(found) == runner._model.hidden_size == len(expected)
            tolerance = 1e-4 * expected.abs().max().item()
            assert torch.allclose(found, expected, rtol=0.0, atol=tolerance)
            unit = read(driver.vectors[10 + sequence_id])
            assert torch.allclose(unit, found / found.norm(), atol=1e-6)
            assert abs(unit.double().norm() - 1.0) < 1e-6


HEADLESS = [name for name in VARIANTS if not name.startswith("gemma3")]


@pytest.mark.parametrize("name", HEADLESS)
def test_a_checkpoint_without_a_head_gives_the_same_vectors(name: str, tmp_path: Path) -> None:
    whole = random_model(VARIANTS[name])
    whole.save_pretrained(tmp_path / "whole")
    body = whole.base_model
    body.save_pretrained(tmp_path / "body")
    loaded = load_model(LoadSpec(str(tmp_path / "body")), "", ParallelGroup())
    assert loaded.info.architecture == type(body).__name__
    assert loaded.info.vectors_only
    assert "lm_head.weight" not in load_file(tmp_path / "body" / "model.safetensors")
    found = read(alone(tmp_path / "body", dtype="float32"))
    with torch.inference_mode():
        expected = body(torch.tensor([make_prompt()])).last_hidden_state[0, -1]
    assert torch.allclose(found, expected, rtol=0.0, atol=1e-4 * expected.abs().max().item())
    assert torch.equal(found, read(alone(tmp_path / "whole", dtype="float32")))


def test_a_checkpoint_without_a_head_fails_what_samples_and_nothing_else(tmp_path: Path) -> None:
    random_model(llama_config()).base_model.save_pretrained(tmp_path)
    driver = Driver(load_runner(tmp_path))
    driver.add(TARGET, make_prompt(), pooling=RAW)
    driver.add(1, make_prompt(), GREEDY)
    result = driver.start().result()
    assert [sequence_id for sequence_id, _ in result.vectors] == [TARGET]
    assert tuple(result.failed_sequence_ids) == (1,)
    with pytest.raises(ModelLoadError, match="draft_model: must have a language-model head, got"):
        load_model(
            LoadSpec(str(tmp_path), LoadOptions(draft_model=str(tmp_path))), "", ParallelGroup()
        )


@pytest.mark.parametrize("architecture", ["LlamaModel", "LlamaForCausalLM", "SmolLM3ForCausalLM"])
def test_a_model_that_looks_both_ways_is_refused(tmp_path: Path, architecture: str) -> None:
    random_model(llama_config()).base_model.save_pretrained(tmp_path)
    edit_config(tmp_path, architectures=[architecture], is_causal=False)
    with pytest.raises(ModelLoadError, match="is_causal: must be true"):
        load_model(LoadSpec(str(tmp_path)), "", ParallelGroup())


@pytest.mark.parametrize("pooling", [RAW, SCALED])
def test_same_bits_among_decoding_mates_in_chunks_and_recomputed(
    model: Path, pooling: PoolingParams
) -> None:
    expected = alone(model, pooling)
    driver = Driver(load_runner(model, dtype="bfloat16"))
    for mate in range(5):
        driver.add(mate, [7 * mate + 3, 9], GREEDY)
    driver.step()
    mates = dict.fromkeys(range(5), 1)
    for chunks in ([45], [16, 29], [1, 43, 1], [44, 1]):
        driver.add(TARGET, make_prompt(), pooling=pooling)
        for count in chunks[:-1]:
            assert TARGET not in driver.step({TARGET: count, **mates})
            assert not driver.vectors
        sampled = driver.step({**mates, TARGET: chunks[-1]})
        assert sampled.keys() == mates.keys(), "nothing is sampled where a vector is asked for"
        assert driver.vectors == {TARGET: expected}
        driver.release(TARGET)


def test_company_keeps_its_tokens(model: Path) -> None:
    prompts = [make_prompt(9, seed=4), make_prompt(30, seed=5)]
    expected = Driver(load_runner(model)).generate(prompts, 6)
    driver = Driver(load_runner(model))
    for sequence_id, prompt in enumerate(prompts):
        driver.add(sequence_id, prompt)
    for step in range(6):
        # One token: beside decoding sequences, a step of the shape of a decode step.
        driver.add(TARGET + step, make_prompt(1 if step % 2 else 20), pooling=SCALED)
        driver.step({each: driver.num_left(each) for each in (0, TARGET + step, 1)})
        assert driver.vectors.keys() == {TARGET + step}
        driver.release(TARGET + step)
    found = [driver.tokens[each][len(prompt) :] for each, prompt in enumerate(prompts)]
    assert found == expected


def test_swapped_out_before_its_last_token(model: Path) -> None:
    expected = alone(model)
    driver = Driver(load_runner(model, dtype="bfloat16", swap_space_bytes=2**20))
    driver.add(TARGET, make_prompt(), pooling=RAW)
    driver.step({TARGET: 44})
    driver.swap(TARGET)
    driver.step()
    assert driver.vectors == {TARGET: expected}


def test_drafts_of_others_beside_it(model: Path) -> None:
    expected = alone(model)
    driver = Driver(load_runner(model, dtype="bfloat16"))
    driver.add(0, [5, 6, 7, 8] * 4, GREEDY)
    driver.step()
    driver.add(TARGET, make_prompt(), pooling=RAW)
    driver.finish(driver.start({0: 1, TARGET: LENGTH}, {0: 3}))
    assert driver.vectors == {TARGET: expected}


@pytest.mark.parametrize("name", ["llama", "gpt2", "cohere", "opt"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_bits_on_1_2_and_4_ranks_and_rank_0_alone_answers(
    name: str, dtype: str, tmp_path: Path
) -> None:
    save_model(tmp_path, VARIANTS[name])
    expected = alone(tmp_path, SCALED, dtype=dtype)

    def run(parallel: ParallelGroup) -> dict[int, bytes]:
        driver = Driver(load_runner(tmp_path, parallel=parallel, dtype=dtype))
        driver.add(1, [3, 9])
        driver.add(TARGET, make_prompt(), pooling=SCALED)
        driver.step()
        return driver.vectors

    for size in (2, 4):
        first, *others = run_ranks(size, run)
        assert first == {TARGET: expected}
        assert not any(others)


def test_graphs_give_the_same_bits(model: Path) -> None:
    """The second step of a shape is recorded, the third is replayed."""
    expected = alone(model)
    driver = Driver(load_runner(model, dtype="bfloat16"))
    for sequence_id in range(4):
        driver.add(sequence_id, make_prompt(), pooling=RAW)
        driver.step({sequence_id: LENGTH})
        assert driver.vectors == {sequence_id: expected}


def test_a_vector_that_is_not_finite_fails_alone(model: Path) -> None:
    runner = load_runner(model)
    forward = runner._model.forward

    def spoiled(*args: torch.Tensor) -> torch.Tensor:
        hidden = forward(*args)
        hidden[LENGTH - 1, 3] = float("nan")
        return hidden

    driver = Driver(runner)
    driver.add(0, make_prompt(), pooling=SCALED)
    driver.add(1, make_prompt(), pooling=SCALED)
    runner._model.forward = spoiled  # type: ignore[method-assign]
    step = driver.start()
    result = step.result()
    assert result.failed_sequence_ids == (0,)
    assert [sequence_id for sequence_id, _ in result.vectors] == [1]
    assert step.num_failed(result) == (1, 0)
    runner.settle()
    num_full = LENGTH // runner.cache_engine.block_size
    assert len(runner.mirror.contents.blocks) == num_full, "nothing of what failed is kept"


def test_the_first_elements_are_scaled_by_themselves(model: Path) -> None:
    driver = Driver(load_runner(model))
    driver.add(0, make_prompt(), pooling=RAW)
    driver.add(1, make_prompt(), pooling=PoolingParams(normalize=False, dimensions=5))
    driver.add(2, make_prompt(), pooling=PoolingParams(dimensions=5))
    driver.add(3, make_prompt(), pooling=SCALED)
    driver.step()
    whole, first, scaled, _ = (read(driver.vectors[each]) for each in range(4))
    assert torch.equal(first, whole[:5])
    assert torch.allclose(scaled, first / first.norm(), atol=1e-6)


def test_what_a_model_says_of_its_vectors(model: Path) -> None:
    def info(**changes: object) -> ModelInfo:
        edit_config(model, **changes)
        return load_model(LoadSpec(str(model)), "test", ParallelGroup()).info

    assert info().embedding_size == 64
    assert (info().is_matryoshka, info().matryoshka_dimensions) == (False, ())
    found = info(is_matryoshka=True)
    assert (found.is_matryoshka, found.matryoshka_dimensions) == (True, ())
    found = info(is_matryoshka=None, matryoshka_dimensions=[16, 32])
    assert (found.is_matryoshka, found.matryoshka_dimensions) == (True, (16, 32))
    with pytest.raises(ModelLoadError, match=r"matryoshka_dimensions: must be in \[1, 64\], got"):
        info(matryoshka_dimensions=[16, 65])


def test_lengths_are_summed_in_an_order_of_their_own() -> None:
    vectors = torch.randn(7, 301, generator=torch.Generator().manual_seed(1))
    vectors[3] = 0.0
    which = torch.tensor([True, True, False, True, True, True, True])
    found = normalize(vectors, which)
    assert torch.equal(found[2], vectors[2])
    assert torch.equal(found[3], vectors[3]), "a vector of zeros has no direction"
    for row in (0, 1, 4, 5, 6):
        expected = vectors[row].double() / vectors[row].double().norm()
        assert torch.allclose(found[row].double(), expected, atol=1e-7)
        assert torch.equal(found[row], normalize(vectors[row : row + 1], which[:1])[0])
