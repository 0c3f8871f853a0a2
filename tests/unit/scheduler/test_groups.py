"""Groups of several sequences: what they share, when they fork, how they end."""

from typing import Any

import pytest

from quire.contract.engine_options import PreemptionMode
from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import FinishReason
from tests.fakes.fake_model import fake_generate
from tests.unit.scheduler.factories import VOCAB_SIZE, Cell, make_params, make_prompt


def expected_outputs(prompt: list[int], width: int, **kwargs: object) -> list[list[int]]:
    return [
        fake_generate(
            prompt,
            make_params(**kwargs),  # type: ignore[arg-type]
            vocab_size=VOCAB_SIZE,
            max_model_len=128,
            sequence_index=index,
        )
        for index in range(width)
    ]


def outputs_of(cell: Cell, group_id: int, width: int) -> list[list[int]]:
    return [cell.outputs[group_id, index] for index in range(width)]


@pytest.mark.parametrize("prompt_length", [1, 4, 5, 8, 9, 11])
@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
def test_n_sequences_compute_their_prompt_once(
    prompt_length: int, max_steps_in_flight: int
) -> None:
    cell = Cell(block_size=4, max_steps_in_flight=max_steps_in_flight)
    prompt = make_prompt(prompt_length)
    group_id = cell.add(prompt, make_params(n=4, max_tokens=9))
    cell.run()
    assert outputs_of(cell, group_id, 4) == expected_outputs(prompt, 4, max_tokens=9)
    # The prompt once and its last token for each of the others, then 8 outputs of each.
    assert cell.model.num_computed == prompt_length + 3 + 4 * 8


def test_full_blocks_of_the_prompt_are_held_once() -> None:
    cell = Cell(block_size=4)
    cell.add(make_prompt(10), make_params(n=4, max_tokens=4))
    cell.step()  # the prompt: the others share its first 9 tokens, 3 blocks
    assert cell.blocks.num_blocks_saved == 3 * 3
    orders = cell.step()  # each writes its own last block now
    assert len(orders.blocks_to_copy) == 3
    assert cell.blocks.num_blocks_saved == 3 * 2
    assert cell.blocks.num_blocks - cell.blocks.num_free_blocks == 2 + 4
    cell.run()
    assert cell.blocks.num_free_blocks == cell.blocks.num_blocks


def test_the_first_sequence_may_end_before_the_others_begin() -> None:
    cell = Cell(block_size=4)
    prompt = make_prompt(7)
    group_id = cell.add(prompt, make_params(n=3, max_tokens=1))
    cell.step()
    assert cell.ends == {(group_id, 0): FinishReason.LENGTH}
    cell.run()
    assert outputs_of(cell, group_id, 3) == expected_outputs(prompt, 3, max_tokens=1)
    assert cell.ended == {group_id}


def test_max_num_seqs_counts_sequences() -> None:
    cell = Cell(max_num_seqs=5)
    cell.add(make_prompt(3), make_params(n=3, max_tokens=4))
    cell.add(make_prompt(3), make_params(n=3, max_tokens=4))
    cell.add(make_prompt(3), make_params(max_tokens=4))
    cell.step()
    assert (len(cell.scheduler.queues.running), len(cell.scheduler.queues.waiting)) == (1, 2)
    cell.run()
    with pytest.raises(InvalidRequestError) as caught:
        cell.add(make_prompt(3), make_params(n=2, best_of=6))
    assert caught.value.field == "best_of"


def test_a_group_that_cannot_fit_as_a_whole_is_refused() -> None:
    cell = Cell(block_size=4, num_blocks=8)
    with pytest.raises(InvalidRequestError) as caught:
        cell.add(make_prompt(21), make_params(n=4))  # 5 shared blocks, 3 for 4 sequences
    assert caught.value.field == "n"
    cell.add(make_prompt(17), make_params(n=4, max_tokens=4))
    cell.run()


def test_the_group_goes_on_when_one_of_its_sequences_is_aborted() -> None:
    cell = Cell(block_size=4)
    prompt = make_prompt(6)
    group_id = cell.add(prompt, make_params(n=3, max_tokens=8))
    cell.step()
    cell.step()
    assert cell.scheduler.abort_sequence(group_id, 1) is None
    cell.run()
    expected = expected_outputs(prompt, 3, max_tokens=8)
    assert cell.outputs[group_id, 0] == expected[0]
    assert cell.outputs[group_id, 2] == expected[2]
    assert (group_id, 1) not in cell.ends


def test_aborting_all_sequences_ends_the_group() -> None:
    cell = Cell()
    group_id = cell.add(make_prompt(6), make_params(n=2, max_tokens=8))
    cell.step()
    assert cell.scheduler.abort_sequence(group_id, 0) is None
    assert cell.scheduler.abort_sequence(group_id, 1) is not None
    assert not cell.scheduler.has_unfinished
    assert not cell.scheduler.abort_sequence(group_id, 1)


def test_a_resumed_group_goes_on_where_each_sequence_was() -> None:
    prompt = make_prompt(9)
    expected = expected_outputs(prompt, 3, max_tokens=10)
    cell = Cell(block_size=4)
    outputs = {0: expected[0][:4], 2: expected[2][:7]}  # the second had ended
    group_id = cell.add(prompt, make_params(n=3, max_tokens=10), outputs=outputs)
    cell.run()
    assert cell.outputs[group_id, 0] == expected[0][4:]
    assert cell.outputs[group_id, 1] == []
    assert cell.outputs[group_id, 2] == expected[2][7:]
    assert cell.ended == {group_id}


def test_a_resumed_sequence_that_was_complete_ends_at_once() -> None:
    prompt = make_prompt(9)
    expected = expected_outputs(prompt, 2, max_tokens=5)
    cell = Cell()
    group_id = cell.add(
        prompt,
        make_params(n=2, max_tokens=5),
        outputs={0: expected[0], 1: expected[1][:2]},
    )
    assert cell.ends == {(group_id, 0): FinishReason.LENGTH}
    cell.run()
    assert cell.outputs[group_id, 1] == expected[1][2:]


def swapping_cell(num_host_blocks: int, mode: PreemptionMode = PreemptionMode.SWAP) -> Cell:
    """Two groups of which one must give way to the other."""
    cell = Cell(block_size=4, num_blocks=10, num_host_blocks=num_host_blocks, preemption_mode=mode)
    cell.add(make_prompt(8), make_params(max_tokens=20))
    cell.add(make_prompt(6, first=9), make_params(n=2, max_tokens=10))
    return cell


def test_a_swapped_group_comes_back_without_computing_again() -> None:
    cell = swapping_cell(num_host_blocks=20)
    cell.run()
    counters = cell.scheduler.counters
    assert counters.swapped_out_blocks == counters.swapped_in_blocks > 0
    assert counters.recomputed_tokens == 0
    # Of each sequence that comes back, the last token is computed again to sample from it.
    assert cell.model.num_computed <= 8 + 19 + 6 + 1 + 2 * 9 + 2 * counters.preemptions
    assert outputs_of(cell, 2, 2) == expected_outputs(make_prompt(6, first=9), 2, max_tokens=10)


def test_without_room_on_the_host_it_is_computed_again() -> None:
    cell = swapping_cell(num_host_blocks=1)
    cell.run()
    assert cell.scheduler.counters.swapped_out_blocks == 0
    assert cell.scheduler.counters.recomputed_tokens > 0
    assert outputs_of(cell, 2, 2) == expected_outputs(make_prompt(6, first=9), 2, max_tokens=10)


@pytest.mark.parametrize(("block_us", "swaps"), [(1.0, True), (1000.0, False)])
def test_auto_does_what_is_cheaper(block_us: float, swaps: bool) -> None:
    cell = swapping_cell(num_host_blocks=20, mode=PreemptionMode.AUTO)
    costs = cell.scheduler.preemption_costs
    for num_tokens in (1, 20, 60):
        costs.observe_step(num_tokens, 500 + 10 * num_tokens)
    assert costs.token_us == pytest.approx(10)
    costs.observe_swap(4, 4 * block_us)
    cell.run()
    assert (cell.scheduler.counters.swapped_out_blocks > 0) == swaps
    assert (cell.scheduler.counters.recomputed_tokens > 0) != swaps


def test_the_first_priority_runs_first_and_takes_the_place_of_others() -> None:
    cell = Cell(max_num_seqs=2)
    low = [cell.add(make_prompt(5), make_params(max_tokens=20), priority=1) for _ in range(3)]
    cell.step()
    high = cell.add(make_prompt(7), make_params(max_tokens=3), now=1.0)
    cell.step()
    assert len(cell.tokens[high]) == 1, "it ran at once"
    assert cell.scheduler.counters.preemptions == 1
    while high not in cell.ended:
        cell.step()
    assert not cell.ended & set(low)
    cell.run()
    for group_id in low:
        assert cell.tokens[group_id] == expected_outputs(make_prompt(5), 1, max_tokens=20)[0]


def test_a_low_priority_is_overtaken_for_a_limited_time() -> None:
    """A flood of urgent requests cannot starve one: its rank improves by waiting."""
    cell = Cell(max_num_seqs=1)
    patient = cell.add(make_prompt(5), make_params(max_tokens=3), priority=2, now=0.0)
    now = 0.0
    while patient not in cell.ended:
        now += 10.0  # seconds, for each step
        cell.add(make_prompt(3), make_params(max_tokens=1), now=now)
        cell.step()
        assert now < 2 * 60 + 100, "two levels of priority are worth two minutes"
    assert now > 100, "the urgent ones went first"


@pytest.mark.parametrize(
    "kind", [{}, {"n": 2}, {"n": 2, "use_beam_search": True, "temperature": 0}]
)
@pytest.mark.parametrize("max_tokens", [1, 4])
def test_log_probabilities_of_the_prompt_come_before_its_sequences_end(
    max_tokens: int, kind: dict[str, Any]
) -> None:
    cell = Cell(max_num_batched_tokens=6)
    prompt = make_prompt(11)
    group_id = cell.add(prompt, make_params(max_tokens=max_tokens, prompt_logprobs=0, **kind))
    cell.run()
    assert cell.reported_prompts[group_id] == prompt[1:]


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_log_probabilities_in_flight_at_a_preemption_are_not_lost(
    num_steps: int, mode: PreemptionMode
) -> None:
    cell = Cell(
        max_num_batched_tokens=6,
        max_num_seqs=1,
        max_steps_in_flight=2,
        num_host_blocks=64,
        preemption_mode=mode,
    )
    prompt = make_prompt(23)
    group_id = cell.add(prompt, make_params(max_tokens=3, prompt_logprobs=0), priority=1)
    for _ in range(num_steps):
        cell.step()
    cell.add(make_prompt(4), make_params(max_tokens=2))
    cell.run()
    assert cell.scheduler.counters.preemptions == 1
    assert cell.reported_prompts[group_id] == prompt[1:]
