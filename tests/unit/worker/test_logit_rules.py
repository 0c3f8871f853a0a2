"""Bans, biases and penalties against transformers' and against their definitions."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from quire.contract.sampling_params import SamplingParams
from worker_svc.device.cpu import CpuDevice
from worker_svc.sampling.rules import LogitRules, RuledRow, apply_rules

VOCAB_SIZE = 60
EOS = (2,)
PROMPT = [7, 9, 9, 11]
OUTPUT = [3, 7, 3, 3]
TOKENS = np.array([*PROMPT, *OUTPUT], np.int32)


def random_logits() -> torch.Tensor:
    return 3 * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


def changed(
    logits: torch.Tensor, num_prompt_tokens: int = len(PROMPT), **params: Any
) -> torch.Tensor:
    rules = LogitRules.of(SamplingParams(**params), num_prompt_tokens, EOS)
    assert rules is not None
    # Beside a row that has other rules and one that has none.
    other = LogitRules.of(SamplingParams(logit_bias={1: 9.0}), 2, EOS)
    assert other is not None
    rows = torch.stack([logits, torch.zeros(VOCAB_SIZE), logits])
    apply_rules(rows, [RuledRow(2, rules, TOKENS), RuledRow(1, other, TOKENS)], CpuDevice().place)
    assert torch.equal(rows[0], logits)
    assert rows[1].nonzero().tolist() == [[1]]
    return rows[2]


def test_default_parameters_have_no_rules() -> None:
    assert LogitRules.of(SamplingParams(stop_token_ids=(4,), max_tokens=3), 4, EOS) is None


@pytest.mark.parametrize("penalty", [0.5, 1.3, 4.0])
def test_repetition_penalty_equals_transformers(penalty: float) -> None:
    logits = random_logits()
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.from_numpy(TOKENS).long()[None], logits.clone()[None])[0]
    assert torch.equal(changed(logits, repetition_penalty=penalty), expected)


def test_presence_and_frequency_count_the_output_alone() -> None:
    logits = random_logits()
    expected = logits.clone()
    expected[3] -= 0.75 * 3 + 0.5
    expected[7] -= 0.75 * 1 + 0.5
    result = changed(logits, presence_penalty=0.5, frequency_penalty=0.75)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
    untouched = torch.ones(VOCAB_SIZE, dtype=torch.bool)
    untouched[[3, 7]] = False
    assert torch.equal(result[untouched], logits[untouched])
    # Nothing is output yet: nothing to penalise.
    assert torch.equal(changed(logits, len(TOKENS), presence_penalty=2.0), logits)


def test_logit_bias_is_added() -> None:
    logits = random_logits()
    result = changed(logits, logit_bias={5: 2.5, 40: -100.0})
    expected = logits.clone()
    expected[5] += 2.5
    expected[40] -= 100.0
    assert torch.equal(result, expected)


def test_only_allowed_tokens_stay() -> None:
    logits = random_logits()
    result = changed(logits, allowed_token_ids=(8, 50))
    assert result.isfinite().nonzero().flatten().tolist() == [8, 50]
    assert torch.equal(result[[8, 50]], logits[[8, 50]])


@pytest.mark.parametrize(
    ("params", "banned"),
    [
        ({}, [2]),
        ({"stop_token_ids": (9, 4)}, [2, 4, 9]),
        ({"stop_token_ids": (9,), "ignore_eos": True}, [9]),
    ],
)
def test_ends_are_banned_before_min_tokens(params: dict[str, Any], banned: list[int]) -> None:
    logits = random_logits()
    early = changed(logits, min_tokens=len(OUTPUT) + 1, **params)
    assert early.isinf().nonzero().flatten().tolist() == banned
    assert torch.equal(changed(logits, min_tokens=len(OUTPUT), **params), logits)


def test_penalties_come_after_bans_and_bias() -> None:
    logits = random_logits()
    result = changed(logits, logit_bias={3: 1.0}, repetition_penalty=2.0, allowed_token_ids=(3, 30))
    biased = logits[3] + 1
    assert result[3] == (biased / 2 if biased > 0 else biased * 2)
    assert result[30] == logits[30]
    assert result.isfinite().sum() == 2


@pytest.mark.parametrize(
    ("params", "is_barred"),
    [
        ({"allowed_token_ids": (2,), "min_tokens": 9}, True),
        ({"allowed_token_ids": (2,), "min_tokens": 4}, False),
        ({"allowed_token_ids": (2, 5), "min_tokens": 9}, False),
        ({"allowed_token_ids": (5, 6), "bad_words_token_ids": ((5,), (3, 6))}, True),
        ({"allowed_token_ids": (5, 6), "bad_words_token_ids": ((5,), (7, 6))}, False),
        ({"bad_words_token_ids": tuple((each,) for each in range(VOCAB_SIZE))}, True),
        ({"bad_words_token_ids": tuple((each,) for each in range(1, VOCAB_SIZE))}, False),
        ({"stop_token_ids": tuple(range(VOCAB_SIZE)), "min_tokens": 9}, True),
    ],
)
def test_rows_that_are_left_no_token_are_told(params: dict[str, Any], is_barred: bool) -> None:
    rules = LogitRules.of(SamplingParams(**params), len(PROMPT), EOS)
    other = LogitRules.of(SamplingParams(logit_bias={1: 9.0}), 2, EOS)
    assert rules is not None and other is not None
    rows = torch.stack([random_logits()] * 3)
    ruled = [RuledRow(1, other, TOKENS), RuledRow(2, rules, TOKENS)]
    assert apply_rules(rows, ruled, CpuDevice().place) == ({2} if is_barred else frozenset())
    assert bool(rows[2].isinf().all()) == is_barred


def test_a_grammar_and_what_else_is_forbidden_may_leave_no_token() -> None:
    params = SamplingParams(allowed_token_ids=(3, 5), bad_words_token_ids=((5,),))
    rules = LogitRules.of(params, len(PROMPT), EOS)
    assert rules is not None
    for allowed, barred in ((5, {0}), (3, frozenset()), (40, {0})):
        mask = np.zeros(2, np.int32)
        mask[allowed // 32] = 1 << allowed % 32
        row = RuledRow(0, rules, TOKENS, mask)
        assert apply_rules(random_logits()[None], [row], CpuDevice().place) == barred


def test_a_grammar_that_has_failed_is_no_fault_of_its_request() -> None:
    rules = LogitRules.of(SamplingParams(allowed_token_ids=(3,)), len(PROMPT), EOS)
    assert rules is not None
    for has_failed, barred in ((True, frozenset()), (False, {0})):
        row = RuledRow(0, rules, TOKENS, np.zeros(2, np.int32), has_failed)
        logits = random_logits()[None]
        assert apply_rules(logits, [row], CpuDevice().place) == barred
        assert logits.isinf().all()
