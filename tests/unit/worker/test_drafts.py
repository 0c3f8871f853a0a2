"""What is drafted, which rows count, and what becomes of them in the mirror."""

import numpy as np
import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs, SequenceState
from worker_svc.steps.drafts import prompt_lookup, rows_that_count
from worker_svc.steps.mirror import SequenceMirror

LOOPING = (1, 2, 3, 4, 5, 1, 2, 3)


@pytest.mark.parametrize(
    ("tokens", "draft"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], [4, 5, 6, 7]),
        ([1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),  # the last of equals
        ([0, 1, 2, 3, 4, 9, 1, 2, 3, 5, 0, 1, 2, 3], [4, 9, 1, 2]),  # the longest
        ([1, 2, 3, 4, 1, 2, 3], [4, 1, 2, 3]),
        ([8, 8, 8, 8], [8, 8, 8, 8]),
        ([6, 7, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
        ([2, 3, 4, 2, 3], []),  # too short to mean anything
        ([1, 2, 3, 4], []),
        ([1], []),
    ],
)
def test_what_followed_the_last_tokens_before(tokens: list[int], draft: list[int]) -> None:
    assert prompt_lookup(np.array(tokens, np.int32), 4).tolist() == draft


def test_a_long_match_is_no_reason_to_look_back_further() -> None:
    tokens = np.array([*range(50), 77, *range(50), 88, *range(50)], np.int32)
    assert prompt_lookup(tokens, 2).tolist() == [88, 0]


@pytest.mark.parametrize(
    ("sampled", "is_ok", "counts"),
    [
        ([5, 6, 7, 9, 4], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
        ([5, 0, 7, 9, 4], [1, 1, 1, 1, 1], [1, 1, 0, 1, 1]),
        ([0, 6, 7, 9, 4], [1, 1, 1, 1, 1], [1, 0, 0, 1, 1]),
        ([5, 6, 7, 8, 4], [1, 0, 1, 1, 1], [1, 1, 0, 1, 1]),
        ([5, 6, 7, 9, 4], [0, 1, 1, 0, 1], [1, 0, 0, 1, 1]),
    ],
)
def test_rows_count_up_to_the_first_that_is_not_its_draft(
    sampled: list[int], is_ok: list[int], counts: list[int]
) -> None:
    """Drafts 5, 6 of one sequence, none of the next, and 9 of a third: the first never counts."""
    expected = np.array([5, 6, -1, -1, -1])
    found = rows_that_count(expected, np.array(sampled), np.array(is_ok, np.bool_))
    assert found.tolist() == [bool(each) for each in counts]


def mirror_of(prompt: tuple[int, ...]) -> SequenceMirror:
    """A mirror of sequence 1, all but the last token of its prompt computed, and 2 like it."""
    mirror = SequenceMirror(16, 10, 20, 50, (2,))
    params = SamplingParams(temperature=0.0, seed=0)
    states = [
        SequenceState(i, 0, prompt, len(prompt), len(prompt) - 1, (i,), params) for i in (1, 2)
    ]
    mirror.apply(SchedulerOutputs(new_sequences=states))
    return mirror


def orders(**slots: int) -> SchedulerOutputs:
    return SchedulerOutputs(
        sequence_ids=[1, 2],
        num_scheduled_tokens=[1, 1],
        num_new_blocks=[0, 0],
        num_draft_slots=list(slots.values()),
    )


@pytest.mark.parametrize(
    ("sampled", "tokens", "num_computed"),
    [
        ((4, 5, 1, 7), (4, 5, 1), 10),
        ((4, 5, 9, 7), (4, 5, 9), 10),
        ((4, 9, 1, 7), (4, 9), 9),
        ((9, 5, 1, 7), (9,), 8),
    ],
)
def test_a_sequence_settles_with_the_tokens_that_count(
    sampled: tuple[int, ...], tokens: tuple[int, ...], num_computed: int
) -> None:
    mirror = mirror_of(LOOPING)
    batch = mirror.apply(orders(one=2, two=0))
    assert batch.num_drafted == (2,)
    assert batch.sampling_ids == (1, 1, 1, 2)
    assert batch.input_codes.tolist() == [3, 4, 5, 3]
    assert batch.positions.tolist() == [7, 8, 9, 7]
    assert batch.sampled_positions.tolist() == [8, 9, 10, 8]
    assert batch.sample_rows.tolist() == [0, 1, 2, 3]
    mirror.settle(batch, np.array(sampled), np.ones(4, np.bool_))
    assert mirror.token_ids(1).tolist() == [*LOOPING, *tokens]
    assert mirror.token_ids(2).tolist() == [*LOOPING, 7]
    assert [each.num_computed_tokens for each in mirror.sequences()] == [num_computed, 8]
    mirror.check_invariants()


def test_slots_without_a_draft_are_an_ordinary_step() -> None:
    mirror = mirror_of((1, 2, 3, 4))
    batch = mirror.apply(orders(one=2, two=3))
    assert (batch.num_drafted, batch.expected_ids, batch.is_decode) == ((0, 0), None, True)
    assert (mirror.token_ids(1)[-1], mirror.token_ids(2)[-1]) == (batch.mark, batch.mark)


@pytest.mark.parametrize("slots", [{"one": 9, "two": 0}, {"one": 1}])
def test_slots_that_do_not_fit_are_refused(slots: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="num_draft_slots"):
        mirror_of(LOOPING).apply(orders(**slots))
