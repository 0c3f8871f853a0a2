"""Drafts: who gets slots for them and when, and what right and wrong ones leave behind."""

import pytest

from quire.contract.outputs import FinishReason
from quire.contract.steps import LEAST_ROW_LIMIT
from scheduler_svc.policy.speculation import (
    FIRST_INTERVAL,
    LONGEST_INTERVAL,
    MOST_READING_STEPS,
    Speculation,
)
from tests.unit.scheduler.factories import Cell, make_params, make_prompt, reference

ROOM = 1000


def speculation(*, row_us: float = 1.0, draft_us: float = 120.0) -> Speculation:
    """One that has seen steps of 100 us without drafts, and some with them."""
    found = Speculation(8)
    for num_tokens in (1, 2, 9):
        found.observe_step(num_tokens, 100 + row_us * num_tokens, has_slots=False)
        found.observe_step(num_tokens, draft_us + row_us * num_tokens, has_slots=True)
    return found


def learn(policy: Speculation, sequence_id: int, drafted: int, accepted: int) -> None:
    for _ in range(30):
        policy.observe_drafts([(sequence_id, drafted, accepted)])


def test_none_without_speculation() -> None:
    assert not Speculation(0).is_on
    assert [Speculation(n)._ladder for n in (1, 2, 3, 8)] == [[1], [2], [2, 3], [2, 4, 8]]


def test_slots_shrink_with_acceptance() -> None:
    policy, slots = speculation(row_us=4.0), []
    for accepted in (8, 6, 1, 0):
        learn(policy, 1, 8, accepted)
        slots.append(policy.plan([1], ROOM).get(1, 0))
    assert slots == sorted(slots, reverse=True)
    assert (slots[0], slots[-1]) == (8, 0)


def test_each_sequence_for_itself() -> None:
    policy = speculation()
    learn(policy, 1, 8, 8)
    learn(policy, 2, 8, 0)
    assert policy.plan([1, 2], ROOM) == {1: 8}


def test_off_where_a_row_costs_as_much_as_a_token() -> None:
    policy = speculation(row_us=50.0)
    learn(policy, 1, 8, 8)
    assert policy.plan([1], ROOM), "alone"
    assert policy.plan(list(range(1, 200)), ROOM) == {}, "200 rows: the batch is full"


def test_off_where_steps_with_drafts_are_too_slow() -> None:
    policy = speculation(draft_us=1000.0)
    learn(policy, 1, 8, 8)
    assert policy.plan([1], ROOM) == {}


def test_not_more_slots_than_fit() -> None:
    policy = speculation()
    learn(policy, 1, 8, 8)
    for _ in range(FIRST_INTERVAL):
        plan = policy.plan([1], 3)
    assert plan == {1: 2}, "tried with as few as there is room for"


def test_what_fails_is_tried_again_ever_more_seldom() -> None:
    policy = speculation()
    learn(policy, 1, 0, 0)
    assert steps_to_trial(policy) == LONGEST_INTERVAL
    policy.observe_drafts([(1, 0, 0)])
    assert steps_to_trial(policy) == LONGEST_INTERVAL
    policy.observe_drafts([(1, 2, 1)])
    assert steps_to_trial(policy) == FIRST_INTERVAL


def test_a_sequence_that_a_draft_model_reads_is_tried_again_at_once() -> None:
    policy = speculation()
    policy.has_draft_model = True
    learn(policy, 1, 8, 8)
    policy.observe_drafts([(1, 0, 0), (2, 0, 0)])
    assert list(policy.plan([1, 2], ROOM)) == [1, 2], "nothing is held against either"
    for _ in range(50):
        policy.observe_drafts([(1, 2, 0), (2, 0, 0)])
    assert steps_to_trial(policy) == LONGEST_INTERVAL
    policy.observe_drafts([(1, 0, 0)])
    assert steps_to_trial(policy) == 1, "as soon as it has been read"


def test_a_trial_reads_the_same_sequences_and_ends() -> None:
    policy, decoding = speculation(), list(range(64))
    policy.has_draft_model = True
    for _ in range(50):
        policy.observe_drafts([(1, 2, 0)])
    plan: dict[int, int] = {}
    while not plan:
        plan = policy.plan(decoding, ROOM)
    for _ in range(MOST_READING_STEPS - 1):
        policy.observe_drafts([(each, 0, 0) for each in plan])
        assert policy.plan(decoding, ROOM) == plan
    policy.observe_drafts([(each, 0, 0) for each in plan])
    assert steps_to_trial(policy) == LONGEST_INTERVAL


@pytest.mark.parametrize("num_drafted", [0, 2])
@pytest.mark.parametrize("num_sequences", [1, 8, 64])
@pytest.mark.parametrize("slower", [1.05, 1.6, 2.0])
def test_trying_costs_at_most_three_percent_where_nothing_repeats(
    slower: float, num_sequences: int, num_drafted: int
) -> None:
    """Also where steps that are not sent ahead take twice as long, and drafts are all wrong."""
    policy, spent_us, num_steps = Speculation(8), 0.0, 3000
    plain_us = 1000.0 + 10 * num_sequences
    for step in range(num_steps):
        first = step // 300 * num_sequences  # requests of 300 tokens
        plan = policy.plan(range(first, first + num_sequences), ROOM)
        num_rows = len(plan) * num_drafted
        step_us = slower * plain_us + 10 * num_rows if plan else plain_us
        policy.observe_step(num_sequences + num_rows, step_us, has_slots=bool(plan))
        if plan:
            policy.observe_drafts([(each, num_drafted, 0) for each in plan])
        spent_us += step_us
    assert num_steps * plain_us / spent_us > 0.97


def steps_to_trial(policy: Speculation) -> int:
    """How many plans it takes until one has slots."""
    return next(index for index in range(1, 1000) if policy.plan([1], ROOM))


def test_a_sequence_that_has_ended_is_forgotten() -> None:
    cell = Cell(max_draft_tokens=4)
    cell.add(make_prompt(6), make_params(max_tokens=20))
    cell.run()
    assert cell.scheduler.speculation.counters.accepted_tokens > 0
    assert not cell.scheduler.speculation._acceptance


@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
def test_drafts_bring_the_same_tokens_in_fewer_steps(max_steps_in_flight: int) -> None:
    steps = []
    for max_draft_tokens in (0, 4):
        cell = Cell(max_draft_tokens=max_draft_tokens, max_steps_in_flight=max_steps_in_flight)
        group_id = cell.add(make_prompt(6), make_params(max_tokens=60))
        cell.run()
        assert cell.tokens[group_id] == reference(make_prompt(6), max_tokens=60)
        steps.append(cell.num_steps)
    accepted = cell.scheduler.speculation.counters.accepted_tokens
    assert accepted > 0
    assert steps[1] == steps[0] - accepted


def test_nothing_is_scheduled_ahead_of_drafts() -> None:
    cell = Cell(max_draft_tokens=4)
    cell.add(make_prompt(6), make_params(max_tokens=30))
    prompt = cell.scheduler.schedule()
    decode = cell.scheduler.schedule()
    assert prompt is not None
    assert decode is not None
    assert (prompt.num_draft_slots, decode.num_draft_slots) == ([], [2])
    assert cell.scheduler.schedule() is None
    cell.take(cell.scheduler.update(cell.model.step(prompt)))
    assert cell.scheduler.schedule() is None
    cell.take(cell.scheduler.update(cell.model.step(decode)))
    assert cell.scheduler.schedule() is not None


@pytest.mark.parametrize("place", range(1, 24))
def test_a_stop_or_a_limit_among_drafts_cuts_what_follows(place: int) -> None:
    prompt = make_prompt(6)
    output = reference(prompt, max_tokens=40)
    stop = next(token for token in output[place:] if output.index(token) >= place)
    expected = output[: output.index(stop) + 1]
    cell = Cell(max_draft_tokens=8, enable_prefix_caching=True)
    stopped = cell.add(prompt, make_params(stop_token_ids=(stop,)))
    limited = cell.add(prompt, make_params(max_tokens=place))
    cell.run()
    assert cell.tokens[stopped] == expected
    assert cell.finished[stopped] is FinishReason.STOP
    assert cell.tokens[limited] == output[:place]
    assert cell.blocks.num_free_blocks == cell.blocks.num_blocks


def test_a_following_turn_finds_only_what_was_accepted() -> None:
    """The fake model's cache would give a wrong draft away."""
    cell = Cell(max_draft_tokens=8, enable_prefix_caching=True)
    prompt = make_prompt(6)
    first = cell.add(prompt, make_params(max_tokens=40))
    cell.run()
    turn = [*prompt, *cell.tokens[first], 5]
    second = cell.add(turn, make_params(max_tokens=20))
    cell.run()
    assert cell.tokens[second] == reference(turn, max_tokens=20)
    assert cell.scheduler.prefix_cache.num_tokens_found == (len(turn) - 2) // 4 * 4


def test_no_group_is_preempted_for_a_draft() -> None:
    """Both fit with not a block to spare."""
    cell = Cell(num_blocks=8, block_size=4, max_draft_tokens=8)
    groups = [cell.add(make_prompt(7, first), make_params(max_tokens=9)) for first in (1, 2)]
    cell.run()
    assert cell.scheduler.counters.preemptions == 0
    for first, group_id in zip((1, 2), groups, strict=True):
        assert cell.tokens[group_id] == reference(make_prompt(7, first), max_tokens=9)


@pytest.mark.parametrize("length", [12, 14])
def test_forks_that_are_computed_again_get_their_blocks(length: int) -> None:
    """As after a crash: the second sequence of a group needs a table of its own."""
    prompts = make_prompt(length, 1), make_prompt(4, 2)
    answers = [reference(prompt, max_tokens=34) for prompt in prompts]
    preemptions = []
    for max_draft_tokens in (0, 8):
        cell = Cell(num_blocks=20, max_draft_tokens=max_draft_tokens)
        single = cell.add(prompts[0], make_params(max_tokens=34))
        outputs = dict.fromkeys((0, 1), answers[1][:27])
        double = cell.add(prompts[1], make_params(n=2, max_tokens=34), outputs=outputs)
        cell.step()
        cell.step()
        preemptions.append(cell.scheduler.counters.preemptions)
        cell.run()
        assert cell.tokens[single] == answers[0]
        assert answers[1][:27] + cell.tokens[double] == answers[1]
    assert preemptions[0] == preemptions[1]


def test_none_before_a_step_without_slots_was_measured() -> None:
    policy = Speculation(8)
    assert policy.plan([1], ROOM) == {}
    policy.observe_step(1, 100.0, has_slots=False)
    assert policy.plan([1], ROOM) == {1: 2}


def test_large_steps_with_drafts_count() -> None:
    policy = speculation(row_us=0.1)
    learn(policy, 1, 8, 8)
    sequence_ids = list(range(1, 65))
    assert policy.plan(sequence_ids, ROOM), "rows seem to cost nothing"
    for _ in range(60):
        policy.observe_step(64, 200.0, has_slots=False)
        policy.observe_step(576, 20_000.0, has_slots=True)
    assert policy.plan(sequence_ids, ROOM) == {}


def test_no_more_sequences_than_tokens_of_a_step() -> None:
    cell = Cell(max_num_seqs=16, max_num_batched_tokens=8, num_blocks=200, max_draft_tokens=8)
    prompts = [make_prompt(3, first) for first in range(1, 13)]
    groups = [cell.add(prompt, make_params(max_tokens=12)) for prompt in prompts]
    cell.run()
    for prompt, group_id in zip(prompts, groups, strict=True):
        assert cell.tokens[group_id] == reference(prompt, max_tokens=12)


@pytest.mark.parametrize("is_aborted", [False, True])
def test_workers_or_requests_lost_with_drafts_in_flight(is_aborted: bool) -> None:
    cell = Cell(max_draft_tokens=4, max_steps_in_flight=2)
    group_id = cell.add(make_prompt(6), make_params(max_tokens=30))
    other = cell.add(make_prompt(5), make_params(max_tokens=30))
    while not (outputs := cell.step()).num_draft_slots:
        pass
    assert cell.scheduler.schedule() is None
    if is_aborted:
        cell.scheduler.abort(group_id)
    else:
        cell.lose_workers()
    cell.run()
    assert outputs.num_draft_slots
    assert cell.tokens[other] == reference(make_prompt(5), max_tokens=30)
    if not is_aborted:
        assert cell.tokens[group_id] == reference(make_prompt(6), max_tokens=30)


def test_no_more_rows_sample_than_may() -> None:
    """Drafts get what sequences leave, those that wait among them; memory is there for so many."""
    cell = Cell(max_num_seqs=40, max_num_batched_tokens=500, num_blocks=900, max_draft_tokens=8)
    counts = []
    for first in range(1, 60):
        cell.add(make_prompt(6, first), make_params(max_tokens=30))
        if first % 10 == 0:
            cell.scheduler.speculation.plan = (  # type: ignore[method-assign]
                lambda sequence_ids, _: dict.fromkeys(sequence_ids, 8)
            )
            outputs = cell.step()
            slots = outputs.num_draft_slots
            counts.append(len(outputs.sequence_ids) + sum(slots) if slots else 0)
    cell.run()
    assert max(counts) == LEAST_ROW_LIMIT


def test_fewer_slots_of_each_where_rows_are_few() -> None:
    policy = speculation()
    sequence_ids = list(range(1, 9))
    for each in sequence_ids:
        learn(policy, each, 8, 8)
    for room, expected in ((64, 8), (63, 4), (31, 2), (16, 2)):
        assert policy.plan(sequence_ids, room) == dict.fromkeys(sequence_ids, expected)


def test_the_most_promising_have_slots_where_not_all_can() -> None:
    policy = speculation()
    sequence_ids = list(range(1, 9))
    for each in sequence_ids:
        learn(policy, each, 8, each)
    for room in (15, 7, 2):
        best = sequence_ids[-(room // 2) :]
        assert policy.plan(sequence_ids, room) == dict.fromkeys(best, 2)
    assert policy.plan(sequence_ids, 1) == {}


def drafting_cell(num_running: int, **options: int) -> Cell:
    """Requests that decode, each of which should have as many slots as it may."""
    cell = Cell(**{"max_num_batched_tokens": 900, "max_draft_tokens": 8, **options})
    for first in range(num_running):
        cell.add(make_prompt(6, first), make_params(max_tokens=30))
    cell.step()
    cell.scheduler.speculation.plan = (  # type: ignore[method-assign]
        lambda sequence_ids, room: dict.fromkeys(list(sequence_ids)[: room // 8], 8)
    )
    return cell


def test_groups_that_find_no_place_take_no_rows_from_drafts() -> None:
    # Blocks for those that run and for their drafts, and not for a prompt of 32 blocks.
    cell = drafting_cell(8, max_num_seqs=128, num_blocks=52, block_size=4)
    for first in range(120):
        cell.add(make_prompt(127, 100 + first), make_params(max_tokens=30))
    assert not cell.step().num_draft_slots, "they might have found one"
    outputs = cell.step()
    assert len(outputs.sequence_ids) == 8
    assert sum(outputs.num_draft_slots) == 64


def test_a_group_starts_although_drafts_would_take_all_rows() -> None:
    cell = drafting_cell(16, max_num_seqs=40, num_blocks=900)
    assert sum(cell.step().num_draft_slots) == 112, "with 16 others, all that may sample"
    cell.add(make_prompt(6, 90), make_params(max_tokens=30))
    outputs = cell.step()
    assert len(outputs.sequence_ids) == 17
    assert sum(outputs.num_draft_slots) == 104


def test_beams_have_no_drafts() -> None:
    cell = Cell(max_draft_tokens=4)
    cell.add(
        make_prompt(6),
        make_params(n=2, use_beam_search=True, temperature=0.0, max_tokens=12),
    )
    cell.run()
    assert cell.scheduler.speculation.counters.draft_tokens == 0
