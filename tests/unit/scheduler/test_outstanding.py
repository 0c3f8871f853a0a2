"""What a cell reports about its load: tokens that are yet to be computed."""

import pytest

from quire.contract.engine_options import PreemptionMode
from quire.contract.outputs import TOKENS_OF_DECODING
from scheduler_svc.policy.outstanding import MAX_WAITING_LOOKED_AT
from tests.unit.scheduler.factories import Cell, make_params, make_prompt


def test_a_prompt_counts_until_it_is_computed_and_decoding_until_the_end() -> None:
    cell = Cell(max_num_batched_tokens=8)
    assert cell.outstanding_tokens == 0
    cell.add(make_prompt(20), make_params(max_tokens=3))
    assert cell.outstanding_tokens == 20 + TOKENS_OF_DECODING
    cell.step()
    assert cell.outstanding_tokens == 12 + TOKENS_OF_DECODING
    cell.step()
    cell.step()
    assert cell.outstanding_tokens == TOKENS_OF_DECODING
    cell.run()
    assert cell.outstanding_tokens == 0


def test_what_waits_counts_without_the_prefix_it_will_find() -> None:
    cell = Cell(enable_prefix_caching=True, max_num_seqs=1)
    cell.add(make_prompt(30), make_params(max_tokens=3))
    cell.run()
    # Seven full blocks of four are in the cache; then, of another prompt, those of a group before.
    for prompt, expected in (
        (make_prompt(30), 30 - 28),
        (make_prompt(30, first=9), 30),
        (make_prompt(30, first=9), 30 - 28),
        (make_prompt(28, first=9), 28 - 24),
    ):
        before = cell.outstanding_tokens
        cell.add(prompt, make_params(max_tokens=3))
        assert cell.outstanding_tokens - before == expected + TOKENS_OF_DECODING
    other_salt = cell.outstanding_tokens
    cell.add(make_prompt(30), make_params(max_tokens=3), cache_salt="other")
    assert cell.outstanding_tokens - other_salt == 30 + TOKENS_OF_DECODING


def test_without_a_prefix_cache_every_prompt_counts() -> None:
    cell = Cell()
    for _ in range(3):
        cell.add(make_prompt(30))
    assert cell.outstanding_tokens == 3 * (30 + TOKENS_OF_DECODING)


@pytest.mark.parametrize("num_waiting", [1, MAX_WAITING_LOOKED_AT, 1000])
def test_a_long_queue_counts_as_its_beginning(num_waiting: int) -> None:
    cell = Cell()
    for _ in range(num_waiting):
        cell.add(make_prompt(30))
    assert cell.outstanding_tokens == num_waiting * (30 + TOKENS_OF_DECODING)


def test_several_sequences_compute_their_prompt_once() -> None:
    cell = Cell()
    cell.add(make_prompt(30), make_params(n=4, max_tokens=5))
    assert cell.outstanding_tokens == 30 + 4 * TOKENS_OF_DECODING
    cell.step()
    cell.step()
    assert cell.outstanding_tokens == 4 * TOKENS_OF_DECODING


def test_what_is_in_host_memory_need_not_be_computed() -> None:
    cell = Cell(num_blocks=12, num_host_blocks=32, preemption_mode=PreemptionMode.SWAP)
    for first in (5, 9):
        cell.add(make_prompt(20, first), make_params(max_tokens=20))
    while not cell.scheduler.residency.swapped_groups:
        cell.step()
    assert cell.outstanding_tokens <= 1 + 2 * TOKENS_OF_DECODING
