"""Log-probabilities: transformers' ones, and the same bits on every path."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire.contract.outputs import TokenLogprobs
from tests.factories import llama_config, random_model
from tests.models.driver import GREEDY, Driver, load_runner

PROMPT = [5, 9, 77, 30, 31, 8, 100, 12, 60, 3]
NUM_TOKENS = 10
ASKING = replace(GREEDY, temperature=0.9, seed=3, repetition_penalty=1.5, logprobs=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    random_model(llama_config()).save_pretrained(directory)
    return directory


def alone(model: Path) -> tuple[list[int], list[TokenLogprobs]]:
    driver = Driver(load_runner(model))
    driver.add(0, PROMPT, ASKING)
    positions = []
    for _ in range(NUM_TOKENS):
        driver.step()
        positions.append(driver.logprobs[0])
    return driver.tokens[0], positions


def test_they_are_of_the_model_s_own_distribution(model: Path) -> None:
    tokens, positions = alone(model)
    with torch.inference_mode():
        reference = AutoModelForCausalLM.from_pretrained(model)(torch.tensor([tokens])).logits[0]
    exact = reference.double().log_softmax(-1)[len(PROMPT) - 1 :]
    for row, token, found in zip(exact, tokens[len(PROMPT) :], positions, strict=False):
        assert found.token_ids[0] == token
        assert found.token_ids[1:] == tuple(row.topk(4).indices.tolist())
        expected = [row[each].item() for each in found.token_ids]
        assert found.logprobs == pytest.approx(expected, abs=1e-4)
        assert found.sampled_rank == (row > row[token]).sum() + 1


def test_same_bits_in_company_and_recomputed(model: Path) -> None:
    _, expected = alone(model)
    driver = Driver(load_runner(model))
    for mate in range(1, 6):
        driver.add(mate, [7 * mate, 9], GREEDY if mate % 2 else ASKING)
    driver.step()
    driver.add(0, PROMPT, ASKING)
    for step in range(NUM_TOKENS):
        if step == 4:
            tokens = driver.release(0)
            driver.add(0, tokens, ASKING, num_prompt_tokens=len(PROMPT))
        driver.step()
        assert driver.logprobs[0] == expected[step]
        assert 1 not in driver.logprobs, "mates that did not ask are sent none"


def test_prompt_logprobs_are_those_of_transformers_in_whatever_chunks(model: Path) -> None:
    with torch.inference_mode():
        reference = AutoModelForCausalLM.from_pretrained(model)(torch.tensor([PROMPT])).logits[0]
    exact = reference.double().log_softmax(-1)
    found = []
    for chunks in ([10], [3, 1, 6], [9, 1]):
        driver = Driver(load_runner(model))
        driver.add(0, PROMPT, replace(GREEDY, prompt_logprobs=2))
        positions: list[TokenLogprobs] = []
        for count in chunks:
            driver.step({0: count})
            for _, part in driver.prompt_logprobs:
                assert part.first_position == 1 + len(positions)
                positions.extend(part.logprobs)
        assert driver.prompt_logprobs == () or len(chunks) == 1 or chunks[-1] > 1
        found.append(positions)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == len(PROMPT) - 1
    for position, (token, row) in enumerate(zip(PROMPT[1:], exact, strict=False)):
        logprobs = found[0][position]
        assert logprobs.token_ids[0] == token
        assert logprobs.logprobs[0] == pytest.approx(float(row[token]), abs=1e-4)
        assert list(logprobs.token_ids[1:]) == row.topk(2).indices.tolist()
        assert logprobs.sampled_rank == 1 + int((row > row[token]).sum())
