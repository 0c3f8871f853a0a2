"""Tokens that a step sampled and that come later: whose they are."""

import numpy as np
import pytest

from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs, SequenceState
from worker_svc.steps.batch import Batch
from worker_svc.steps.mirror import SequenceMirror

PROMPT = (5, 6, 7)


def state(sequence_id: int) -> SequenceState:
    params = SamplingParams(temperature=0.0, seed=0)
    return SequenceState(sequence_id, 0, PROMPT, len(PROMPT), 0, (3,), params)


def step(
    mirror: SequenceMirror, computes: tuple[int, int], *, new: int | None = None, released: int = 0
) -> Batch:
    """Compute so many tokens of a sequence, and let the mirror wait for the token it samples."""
    outputs = SchedulerOutputs(
        released_sequence_ids=[released] if released else [],
        new_sequences=[] if new is None else [state(new)],
        sequence_ids=list(computes[:1]),
        num_scheduled_tokens=list(computes[1:]),
        num_new_blocks=[0],
    )
    return mirror.apply(outputs)


@pytest.mark.parametrize("ok", [True, False])
def test_a_row_that_changes_hands_waits_for_the_token_of_its_own_step(ok: bool) -> None:
    """The next sequence in the row waits at the same position as the one before it."""
    mirror = SequenceMirror(16, 10, 100, 50, (2,))
    first = step(mirror, (1, 3), new=1)
    second = step(mirror, (2, 3), new=2, released=1)
    assert first.sampling_rows == second.sampling_rows
    assert first.sampled_positions == second.sampled_positions

    mirror.settle(first, np.array([11]), np.array([ok]))
    assert mirror.token_ids(2)[-1] < 0, "that was the token of a sequence that is gone"
    mirror.settle(second, np.array([22]), np.array([True]))
    assert mirror.token_ids(2).tolist() == [5, 6, 7, 22]
    third = step(mirror, (2, 1))
    assert (third.failed_ids, third.input_codes.tolist()) == ((), [22])


def test_a_token_that_has_not_come_is_named_by_its_row() -> None:
    mirror = SequenceMirror(16, 10, 100, 50, (2,))
    batch = step(mirror, (1, 3), new=1)
    following = step(mirror, (1, 1))
    assert following.input_codes.tolist() == [-1 - int(batch.sampling_rows[0])]


def prompt_state(sequence_id: int, num_tokens: int, block_ids: tuple[int, ...]) -> SequenceState:
    params = SamplingParams(temperature=0.0, seed=0)
    prompt = tuple(range(3, 3 + num_tokens))
    return SequenceState(sequence_id, 0, prompt, num_tokens, 0, block_ids, params)


def chunk(
    mirror: SequenceMirror, sequence_id: int, num_tokens: int, *, new: SequenceState | None = None
) -> Batch:
    """Compute so many tokens of a prompt, of which more follow; its row may have a new owner."""
    released = [] if new is None or not mirror.sequences() else [mirror.sequences()[0].sequence_id]
    outputs = SchedulerOutputs(
        released_sequence_ids=released,
        new_sequences=[] if new is None else [new],
        sequence_ids=[sequence_id],
        num_scheduled_tokens=[num_tokens],
        num_new_blocks=[0],
    )
    return mirror.apply(outputs)


def settle(mirror: SequenceMirror, batch: Batch, *, ok: bool = True) -> list[int]:
    """Settle a step; return the blocks that are recorded."""
    count = len(batch.sampling_rows)
    mirror.settle(batch, np.full(count, 9), np.full(count, ok))
    return sorted(block.block_id for block in mirror.contents.blocks)


def test_blocks_of_the_step_under_way_are_not_recorded() -> None:
    mirror = SequenceMirror(4, 10, 100, 50, (2,))
    first = chunk(mirror, 1, 8, new=prompt_state(1, 16, (0, 1, 2, 3)))
    second = chunk(mirror, 1, 8)
    assert settle(mirror, first) == [0, 1]
    assert settle(mirror, second) == [0, 1, 2, 3]


def test_blocks_of_a_step_that_fails_are_never_recorded() -> None:
    mirror = SequenceMirror(4, 10, 100, 50, (2,))
    first = chunk(mirror, 1, 8, new=prompt_state(1, 16, (0, 1, 2, 3)))
    second = chunk(mirror, 1, 8)
    settle(mirror, first)
    assert settle(mirror, second, ok=False) == [0, 1]


def test_blocks_of_a_row_that_changes_hands_are_recorded_with_their_own_step() -> None:
    mirror = SequenceMirror(4, 10, 100, 50, (2,))
    first = chunk(mirror, 1, 8, new=prompt_state(1, 16, (0, 1, 2, 3)))
    second = chunk(mirror, 2, 12, new=prompt_state(2, 12, (4, 5, 6)))
    assert first.rows == second.rows
    assert settle(mirror, first) == []
    assert settle(mirror, second) == [4, 5, 6]
