"""Penalised sequences: transformers' tokens, and the same ones on every path."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quire.contract.sampling_params import SamplingParams
from tests.factories import EOS_TOKEN_ID, VOCAB_SIZE, llama_config, random_model
from tests.models.driver import GREEDY, Driver, load_runner

PROMPT = [5, 9, 77, 30, 31, 8, 100, 12, 60, 3]
NUM_TOKENS = 20
PENALISED = SamplingParams(
    temperature=0.8,
    seed=11,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    repetition_penalty=1.2,
    logit_bias={40: 1.5, 41: -100.0},
    min_tokens=10,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    random_model(llama_config()).save_pretrained(directory)
    return directory


def alone(model: Path, params: SamplingParams) -> list[int]:
    driver = Driver(load_runner(model))
    driver.add(0, PROMPT, params)
    for _ in range(NUM_TOKENS):
        driver.step()
    return driver.tokens[0][len(PROMPT) :]


def test_repetition_penalty_gives_the_tokens_of_transformers(model: Path) -> None:
    expected = random_model(llama_config()).generate(
        torch.tensor([PROMPT]),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        repetition_penalty=1.8,
        eos_token_id=None,
    )[0, len(PROMPT) :]
    tokens = alone(model, replace(GREEDY, repetition_penalty=1.8))
    assert tokens == expected.tolist()
    assert tokens != alone(model, GREEDY), "the penalty changed nothing"


def test_min_tokens_holds_the_end_back(model: Path) -> None:
    eager = replace(GREEDY, logit_bias={EOS_TOKEN_ID: 100.0})
    assert alone(model, eager) == [EOS_TOKEN_ID] * NUM_TOKENS
    held = alone(model, replace(eager, min_tokens=7))
    assert EOS_TOKEN_ID not in held[:7]
    assert held[7] == EOS_TOKEN_ID


def test_a_sequence_that_is_left_no_token_fails_by_no_fault_of_its_model(model: Path) -> None:
    runner = load_runner(model)
    driver = Driver(runner)
    barred = replace(GREEDY, allowed_token_ids=(EOS_TOKEN_ID,), min_tokens=3)
    driver.add(0, PROMPT, barred)
    driver.add(1, PROMPT, replace(barred, min_tokens=0))
    step = driver.start()
    result = step.result()
    assert result.failed_sequence_ids == result.barred_sequence_ids == (0,)
    assert result.sequence_ids == (1,)
    assert step.num_failed(result) == (0, 0)


def test_same_tokens_in_company_and_recomputed(model: Path) -> None:
    expected = alone(model, PENALISED)
    driver = Driver(load_runner(model))
    for mate in range(1, 9):
        params = GREEDY if mate % 2 else replace(PENALISED, seed=mate)
        driver.add(mate, [(7 * mate + i) % VOCAB_SIZE for i in range(4 * mate)], params)
    driver.step()
    driver.add(0, PROMPT, PENALISED)
    for step in range(NUM_TOKENS):
        if step == 8:  # preempted, and back with what it had
            tokens = driver.release(0)
            driver.add(0, tokens, PENALISED, num_prompt_tokens=len(PROMPT))
        driver.step()
    assert driver.tokens[0][len(PROMPT) :] == expected


def test_rules_leave_with_their_sequence(model: Path) -> None:
    expected = alone(model, GREEDY)
    driver = Driver(load_runner(model))
    driver.add(1, PROMPT, replace(GREEDY, allowed_token_ids=(4,)))
    assert list(driver.step().values()) == [4]
    driver.release(1)
    driver.add(2, PROMPT)  # may take the row of the one that left
    for _ in range(NUM_TOKENS):
        driver.step()
    assert driver.tokens[2][len(PROMPT) :] == expected
