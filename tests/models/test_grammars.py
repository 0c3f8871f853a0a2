"""Requests with grammars: their outputs obey them, and are the same on every path.

The model is a random one: nothing but its grammar makes a text of what a request gets.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest

from quire.contract.outputs import FinishReason
from quire.contract.sampling_params import SamplingParams
from quire.contract.structured_outputs import StructuredOutputsParams
from tests.depth import budget
from tests.factories import llama_config, save_model
from tests.fakes import small_tokenizers
from tests.models.driver import GREEDY, Driver, load_runner
from tests.models.test_speculation import Outputs, Run
from worker_svc.steps.runner import ModelRunner

NUM_REQUESTS = budget("requests with grammars and drafts", test=84, deep=1000)
EOS = 1
TOKENIZER = small_tokenizers.byte_level()
PATTERN = "(return|class)( (return|class|[a-z]{1,3})){0,5}"
CHOICES = ("sort items in place", "return a copy", "Ωμέγα")
SCHEMA = {
    "type": "object",
    "properties": {
        "list": {"type": "array", "items": {"enum": ["sort", "sort", None]}, "maxItems": 4},
        "n": {"type": "integer", "minimum": -5, "maximum": 5},
    },
    "required": ["n"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
REGEX = SamplingParams(
    structured_outputs=StructuredOutputsParams(regex=PATTERN), max_tokens=40, seed=0
)
CHOICE = replace(REGEX, structured_outputs=StructuredOutputsParams(choice=CHOICES))
JSON = replace(REGEX, structured_outputs=StructuredOutputsParams(json=SCHEMA))
LARK = replace(
    REGEX,
    structured_outputs=StructuredOutputsParams(grammar='start: "(" start ")" | "append"'),
)
MODES = (
    REGEX,
    replace(REGEX, temperature=0.0),
    JSON,
    replace(JSON, n=2, best_of=3, logprobs=1),
    SamplingParams(max_tokens=20),
    replace(CHOICE, min_tokens=30),
    replace(LARK, repetition_penalty=1.3, presence_penalty=0.5),
    replace(JSON, top_k=5, top_p=0.9, temperature=1.5, logit_bias={40: 3.0}),
)


def is_of_schema(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


CHECKS: dict[str, Callable[[str], Any]] = {
    "regex": re.compile(PATTERN).fullmatch,
    "choice": CHOICES.__contains__,
    "json": is_of_schema,
    "grammar": re.compile(r"\(*append\)*").fullmatch,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_model(directory, llama_config(vocab_size=500, eos_token_id=EOS))
    TOKENIZER.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def run(model: Path, num_blocks: int, draws: Random | None = None) -> tuple[Run, Outputs]:
    requests = Run(model, num_blocks, draws, modes=MODES, eos_token_id=EOS)
    return requests, requests.run(NUM_REQUESTS)


@pytest.fixture(scope="module")
def expected(model: Path) -> Outputs:
    return run(model, 400)[1]


@pytest.mark.budget
def test_outputs_that_end_by_themselves_obey_their_grammar(expected: Outputs) -> None:
    kinds = dict.fromkeys(CHECKS, 0)
    for (group_id, index), reason in expected.ends.items():
        grammar = MODES[(group_id - 1) % len(MODES)].structured_outputs
        assert reason in (FinishReason.STOP, FinishReason.LENGTH)
        if grammar is None or reason is FinishReason.LENGTH:
            continue
        *token_ids, end = expected.tokens[group_id, index]
        assert end == EOS
        text = TOKENIZER.decode(token_ids)
        assert CHECKS[grammar.given[0]](text), text
        kinds[grammar.given[0]] += 1
    assert all(kinds.values()), kinds


@pytest.mark.budget
def test_drafts_preemption_and_lost_workers_change_nothing(model: Path, expected: Outputs) -> None:
    requests, outputs = run(model, 40, Random(2))
    assert outputs == expected
    assert requests.num_lost > 0
    assert requests.scheduler.counters.preemptions > 3
    drafts = requests.scheduler.speculation.counters
    assert 0 < drafts.accepted_tokens < drafts.draft_tokens


PROMPT = [5, 9, 77, 30, 31]


def alone(runner: ModelRunner, params: SamplingParams, num_tokens: int) -> list[int]:
    driver = Driver(runner)
    driver.add(0, PROMPT, params)
    while len(driver.tokens[0]) < len(PROMPT) + num_tokens and driver.tokens[0][-1] != EOS:
        driver.step()
    runner.forget_sequences()
    return driver.tokens[0][len(PROMPT) :]


def test_alone_in_company_and_continued_elsewhere(model: Path) -> None:
    runner = load_runner(model)
    for seed, params in enumerate((REGEX, JSON, replace(LARK, temperature=0.0))):
        seeded = replace(params, seed=seed)
        expected = alone(runner, seeded, 12)
        driver = Driver(runner)
        driver.add(0, PROMPT, seeded)
        driver.add(1, PROMPT[::-1])
        driver.add(2, PROMPT, CHOICE)
        for _ in expected[: len(expected) // 2]:
            driver.step()
        # Preempted, or begun at another worker: all its tokens come at once.
        tokens = driver.release(0)
        assert tokens[len(PROMPT) :] == expected[: len(expected) // 2]
        driver.add(3, tokens, seeded, num_prompt_tokens=len(PROMPT))
        for _ in expected[len(expected) // 2 :]:
            driver.step()
        assert driver.tokens[3][len(PROMPT) :] == expected
        runner.forget_sequences()


def test_masks_that_are_begun_after_the_model_are_the_same(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where the tokens before are not known when a step begins."""
    runner = load_runner(model)
    expected = alone(runner, REGEX, 12)
    monkeypatch.setattr(runner.sampler, "start_masks", lambda batch: None)
    assert alone(runner, REGEX, 12) == expected


def test_the_end_comes_before_min_tokens_where_nothing_else_may_come(model: Path) -> None:
    runner = load_runner(model)
    one_text = replace(CHOICE, structured_outputs=StructuredOutputsParams(choice=["append"]))
    found = alone(runner, replace(one_text, min_tokens=30), 40)
    assert TOKENIZER.decode(found) == "append"
    assert found[-1] == EOS
    longer = replace(REGEX, structured_outputs=StructuredOutputsParams(regex="a*"))
    biased = replace(longer, logit_bias={EOS: 100.0})
    assert alone(runner, biased, 40) == [EOS]
    assert alone(runner, replace(biased, min_tokens=3), 40)[3] == EOS


def test_a_sequence_that_its_grammar_fails_ends_alone(model: Path) -> None:
    runner = load_runner(model)
    expected = alone(runner, GREEDY, 6)
    driver = Driver(runner)
    driver.add(0, PROMPT)
    # Allowed tokens that the grammar cannot begin with.
    driver.add(1, PROMPT, replace(CHOICE, allowed_token_ids=(300,)))
    step = driver.start()
    result = step.result()
    assert result.failed_sequence_ids == result.barred_sequence_ids == (1,)
    assert step.num_failed(result) == (0, 1), "its logits were good"
    assert result.sequence_ids == (0,)
    assert list(result.token_ids) == expected[:1]


def test_a_model_without_a_tokenizer_fails_what_has_a_grammar(tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    driver = Driver(load_runner(tmp_path))
    driver.add(0, PROMPT, CHOICE)
    driver.add(1, PROMPT, replace(CHOICE, allowed_token_ids=(30,)))
    step = driver.start()
    result = step.result()
    assert result.failed_sequence_ids == (0, 1)
    assert result.barred_sequence_ids == (), "the grammar failed, by no fault of the requests"
    assert step.num_failed(result) == (0, 2)
