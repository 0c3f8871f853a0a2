"""Drafts, right or wrong, change no token and no log-probability, under any rule."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from quire.contract.outputs import TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from tests.factories import CONFIGS, EOS_TOKEN_ID, VOCAB_SIZE, llama_config, save_model
from tests.models.driver import Driver, load_runner
from tests.models.linked_ranks import run_ranks
from tests.variants import VARIANTS
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps import draft_model
from worker_svc.steps.drafts import one_by_one
from worker_svc.steps.runner import ModelRunner

NUM_TOKENS = 40
# Whose caches have the type of the model alone.
LATENT = ("deepseek_v2", "deepseek_v3")
MAX_SLOTS = 8
REPORTED = SamplingParams(seed=3, logprobs=2, max_tokens=None)
MODES = {
    "greedy": replace(REPORTED, temperature=0.0),
    "sampled": replace(REPORTED, seed=2**64 - 1),
    "silent": SamplingParams(seed=4, max_tokens=None),
    "filtered": replace(REPORTED, top_k=20, top_p=0.8, min_p=0.01),
    "repetition": replace(REPORTED, temperature=0.6, repetition_penalty=1.4),
    "frequency": replace(REPORTED, temperature=0.6, frequency_penalty=0.7),
    "presence": replace(REPORTED, temperature=0.0, presence_penalty=1.5),
    "biased": replace(REPORTED, logit_bias={9: 4.0, 10: -100.0}),
    "allowed": replace(REPORTED, allowed_token_ids=tuple(range(5, 25))),
    "at least": replace(REPORTED, logit_bias={EOS_TOKEN_ID: 9.0}, min_tokens=15),
    "held back": replace(REPORTED, logit_bias={7: 9.0}, stop_token_ids=(7,), min_tokens=20),
    "censored": replace(
        REPORTED,
        allowed_token_ids=(30, 31, 32),
        bad_words_token_ids=((30, 31), (31, 31, 32), (32, 30, 32)),
    ),
}
Outputs = dict[int, tuple[list[int], list[TokenLogprobs]]]


def prompts() -> list[list[int]]:
    draw = Random(5)
    lengths = [draw.choice([1, 2, 14, 15, 16, 17, 30, 50]) for _ in MODES]
    return [[draw.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


class PartlyRight:
    """Drafts what is known to follow, but for a share of the tokens.

    Attributes:
        num_right, num_wrong: tokens drafted so far.
    """

    def __init__(self, texts: list[list[int]], share_wrong: float) -> None:
        self._texts = texts
        self._share_wrong = share_wrong
        self._draw = Random(6)
        self.num_right = self.num_wrong = 0

    def __call__(self, token_ids: npt.NDArray[np.int32], num_slots: int) -> npt.NDArray[np.int32]:
        known = token_ids.tolist()
        (text,) = [each for each in self._texts if each[: len(known)] == known]
        draft = text[len(known) : len(known) + self._draw.randint(0, num_slots)]
        for index, token_id in enumerate(draft):
            is_wrong = self._draw.random() < self._share_wrong
            draft[index] = (token_id + is_wrong) % VOCAB_SIZE
            self.num_wrong += is_wrong
            self.num_right += not is_wrong
        return np.array(draft, np.int32)


def run(
    runner: ModelRunner, max_slots: int = 0, *, chunk: int = 1000, disturbed: bool = False
) -> Outputs:
    """Output and log-probabilities of every mode, all in one batch.

    Args:
        runner: without sequences.
        max_slots: limit on the slots for drafts of a sequence in a step.
        chunk: limit on the tokens of a prompt in a step.
        disturbed: whether sequences are moved, or dropped and computed again, now and then.
    """
    driver, draw, found = Driver(runner), Random(7), Outputs()
    for sequence_id, (params, prompt) in enumerate(zip(MODES.values(), prompts(), strict=True)):
        driver.add(sequence_id, prompt, params)
        found[sequence_id] = prompt, []
    while driver.tokens:
        scheduled, slots = {}, {}
        for sequence_id, tokens in driver.tokens.items():
            num_left = driver.num_left(sequence_id)
            scheduled[sequence_id] = min(num_left, chunk)
            if max_slots and scheduled[sequence_id] == num_left:
                num_missing = len(found[sequence_id][0]) + NUM_TOKENS - len(tokens)
                slots[sequence_id] = draw.randint(0, min(max_slots, num_missing - 1))
        step = driver.start(scheduled, slots)
        driver.finish(step)
        result = step.result()
        for sequence_id, each in zip(result.sequence_ids, result.logprobs, strict=False):
            found[sequence_id][1].append(each)
        for sequence_id, (prompt, _) in enumerate(zip(prompts(), MODES, strict=True)):
            tokens = driver.tokens.get(sequence_id, [])
            if len(tokens) == len(prompt) + NUM_TOKENS:
                found[sequence_id] = driver.release(sequence_id), found[sequence_id][1]
            elif disturbed and len(tokens) > len(prompt) and draw.random() < 0.1:
                params = MODES[list(MODES)[sequence_id]]
                driver.add(sequence_id, driver.release(sequence_id), params, len(prompt))
    return found


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_model(directory, llama_config())
    return directory


@pytest.fixture(scope="module")
def expected(model: Path, dtype: str) -> Outputs:
    return run(load_runner(model, dtype=dtype))


@pytest.mark.parametrize(
    "path",
    [
        {},
        {"disturbed": True},
        {"chunk": 5},
        {"chunk": 7, "disturbed": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("share_wrong", [0.0, 0.3, 1.0])
def test_drafts_change_nothing(
    share_wrong: float, path: dict[str, Any], model: Path, dtype: str, expected: Outputs
) -> None:
    runner = load_runner(model, dtype=dtype, block_size=8)
    drafter = PartlyRight([tokens for tokens, _ in expected.values()], share_wrong)
    runner.mirror.drafter = one_by_one(drafter)
    assert run(runner, MAX_SLOTS, **path) == expected
    assert drafter.num_right > 200 if share_wrong < 1 else drafter.num_wrong > 200


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, ("bfloat16", cache))
        for name in CONFIGS
        for cache in (("auto",) if name in LATENT else ("auto", "int8"))
    ],
    ids=str,
)
def test_drafts_change_nothing_in_any_family(
    name: str, kind: tuple[str, str], tmp_path: Path
) -> None:
    save_model(tmp_path, VARIANTS[name])
    options = dict(zip(("dtype", "kv_cache_dtype"), kind, strict=True))
    expected = run(load_runner(tmp_path, **options))
    runner = load_runner(tmp_path, **options)
    runner.mirror.drafter = one_by_one(
        PartlyRight([tokens for tokens, _ in expected.values()], 0.2)
    )
    assert run(runner, MAX_SLOTS) == expected


def test_a_draft_model_reads_what_it_has_missed_first(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred tokens, 24 a step; the last nine are more than may be read beside drafts."""
    monkeypatch.setattr(draft_model, "READ_TOKENS", 24)
    monkeypatch.setattr(draft_model, "MAX_TOKENS_BEHIND", 8)
    prompt = [3 + index % 100 for index in range(100)]
    (expected,) = Driver(load_runner(model)).generate([prompt], 40)
    driver, num_drafted = Driver(load_runner(model, draft_model=model)), list[int]()
    driver.add(0, prompt)
    driver.step()
    while len(driver.tokens[0]) < 120:
        step = driver.start({0: 1}, {0: 4})
        num_drafted += step.batch.num_drafted
        driver.finish(step)
    assert num_drafted == [0, 0, 0, 0, 0, 4, 4, 4]
    assert driver.tokens[0] == [*prompt, *expected[:21]], "all drafts are right"


@pytest.mark.parametrize("has_draft_model", [False, True])
def test_ranks_draft_the_same_and_give_the_tokens_of_one(
    has_draft_model: bool, model: Path
) -> None:
    """Ranks above 0 know the tokens only, and what these make of a draft."""

    def tokens_of(parallel: ParallelGroup) -> list[list[int]]:
        drafting = model if has_draft_model else None
        runner = load_runner(model, parallel=parallel, dtype="float32", draft_model=drafting)
        return [tokens for tokens, _ in run(runner, MAX_SLOTS, disturbed=True).values()]

    alone = [tokens for tokens, _ in run(load_runner(model, dtype="float32")).values()]
    assert run_ranks(2, tokens_of) == [alone, alone]
