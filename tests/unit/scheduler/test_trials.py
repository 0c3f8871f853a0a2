"""A request that workers are lost at fails alone; one that they are not lost at never does."""

import random
from itertools import pairwise
from typing import Any

import pytest

from quire.contract.steps import SchedulerOutputs, StepResult
from scheduler_svc.policy.trials import Verdict
from tests.unit.scheduler.factories import Cell, make_params, make_prompt, reference

PROMPT_TOKENS = 9
MAX_TOKENS = 14


class WorkersLostError(Exception):
    """A step has cost the workers their life."""


class PoisonedCell(Cell):
    """Its workers die whenever they compute a token of a position of one request.

    Args:
        reports: whether they report that they failed, or are gone without a word.
        options: of the cell.

    Attributes:
        verdicts: of all losses so far.
    """

    def __init__(self, reports: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self._reports = reports
        self.verdicts: list[Verdict] = []
        self._prompt: list[int] = []
        self._position = -1
        self._step = self.model.step
        self.model.step = self._die_or_step  # type: ignore[method-assign]

    def poison(self, prompt: list[int], position: int) -> None:
        self._prompt, self._position = prompt, position

    def _die_or_step(self, outputs: SchedulerOutputs) -> StepResult:
        before = {key: each.num_computed_tokens for key, each in self.model.sequences.items()}
        result = self._step(outputs)
        for sequence_id in outputs.sequence_ids:
            mirrored = self.model.sequences[sequence_id]
            first = before.get(sequence_id, mirrored.state.num_computed_tokens)
            is_poisoned = mirrored.token_ids[: len(self._prompt)] == self._prompt
            if is_poisoned and first <= self._position < mirrored.num_computed_tokens:
                raise WorkersLostError
        return result

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.has_work:
                return
            try:
                self.step()
            except WorkersLostError:
                self.verdicts.append(self.lose_workers(has_failed=self._reports))
                if (guilty := self.verdicts[-1].guilty) is not None:
                    self.scheduler.abort(guilty.group_id)
                self.scheduler.check_invariants()
        raise AssertionError("not finished")

    def guilty_ids(self) -> list[int]:
        return [each.guilty.group_id for each in self.verdicts if each.guilty is not None]


def run_with_poison(
    position: int, in_flight: int, num_before: int, *, steps_before: int = 0, **options: Any
) -> PoisonedCell:
    """Run requests of which one is poisoned, and check all others' tokens."""
    cell = PoisonedCell(max_steps_in_flight=in_flight, max_num_batched_tokens=24, **options)
    prompts = [make_prompt(PROMPT_TOKENS, first) for first in range(8)]
    params = make_params(max_tokens=MAX_TOKENS)
    ids = [cell.add(prompt, params) for prompt in prompts[:num_before]]
    for _ in range(steps_before):
        cell.step()
    poisoned = prompts[num_before]
    cell.poison(poisoned, position)
    ids += [cell.add(prompt, params) for prompt in prompts[num_before:]]
    cell.run()
    for number, (group_id, prompt) in enumerate(zip(ids, prompts, strict=True)):
        expected = reference(prompt, max_tokens=MAX_TOKENS)
        if number == num_before:
            assert cell.guilty_ids() == [group_id]
            assert cell.tokens[group_id] == expected[: len(cell.tokens[group_id])]
            assert len(cell.tokens[group_id]) <= max(0, position - PROMPT_TOKENS + 1)
        else:
            assert cell.tokens[group_id] == expected
    assert cell.blocks.num_free_blocks == cell.blocks.num_blocks
    return cell


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("num_before", [0, 3, 7])
@pytest.mark.parametrize("steps_before", [0, 5])
@pytest.mark.parametrize(("reports", "num_losses"), [(True, 2), (False, 3)])
def test_what_cannot_be_computed_fails_alone_at_the_second_loss_or_third(
    in_flight: int, num_before: int, steps_before: int, reports: bool, num_losses: int
) -> None:
    steps_before = num_before and steps_before
    cell = run_with_poison(0, in_flight, num_before, steps_before=steps_before, reports=reports)
    assert len(cell.verdicts) == num_losses


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("position", [4, 8, 9, 12, 21])
@pytest.mark.parametrize(
    "options",
    [{}, {"enable_prefix_caching": True}, {"num_blocks": 16}, {"max_draft_tokens": 3}],
    ids=["plain", "prefix cache", "preemption", "drafts"],
)
def test_what_is_lost_at_a_later_token_fails_alone(
    in_flight: int, position: int, options: dict[str, Any]
) -> None:
    for num_before in (0, 4):
        cell = run_with_poison(position, in_flight, num_before, **options)
        # Drafts reach the token before the sequence does, which then comes nearer by one each time.
        assert 2 <= len(cell.verdicts) <= 5 + options.get("max_draft_tokens", 0)


def test_a_chunk_of_a_long_prompt_is_found() -> None:
    cell = PoisonedCell(max_num_batched_tokens=16)
    prompt = make_prompt(70)
    cell.poison(prompt, 50)
    others = [cell.add(make_prompt(5, first), make_params(max_tokens=20)) for first in range(3)]
    poisoned = cell.add(prompt, make_params(max_tokens=5))
    cell.run()
    assert cell.guilty_ids() == [poisoned]
    assert len(cell.verdicts) == 2
    for first, group_id in enumerate(others):
        assert cell.tokens[group_id] == reference(make_prompt(5, first), max_tokens=20)


def test_two_poisoned_requests_fail_one_after_the_other() -> None:
    cell = PoisonedCell()
    prompt = make_prompt(6)
    cell.poison(prompt, 3)
    both = [cell.add(prompt, make_params(max_tokens=5, seed=seed)) for seed in (1, 2)]
    cell.run()
    assert sorted(cell.guilty_ids()) == both
    assert len(cell.verdicts) == 3


def test_a_suspect_is_computed_alone_and_in_turns_with_the_others() -> None:
    cell = Cell(max_num_batched_tokens=16, max_steps_in_flight=2)
    others = [cell.add(make_prompt(4, first), make_params(max_tokens=60)) for first in range(2)]
    cell.step()
    cell.step()
    long = cell.add(make_prompt(60), make_params(max_tokens=2))
    for _ in range(4):
        cell.step()
    verdict = cell.lose_workers()
    assert [group.group_id for group in verdict.suspects] == [long]
    assert verdict.guilty is None
    suspect = verdict.suspects[0]
    num_others = sum(len(cell.tokens[each]) for each in others)
    turns = []
    while suspect.suspect_until:
        orders = cell.step()
        if orders.sequence_ids:
            is_own = not suspect.sequences.keys().isdisjoint(orders.sequence_ids)
            assert not is_own or len(orders.sequence_ids) == 1
            turns.append(is_own)
    assert {True, False} == set(turns)
    assert not any(a and b for a, b in pairwise(turns)), "others wait for it"
    assert sum(len(cell.tokens[each]) for each in others) > num_others
    cell.run()
    assert cell.tokens[long] == reference(make_prompt(60), max_tokens=2)


def test_what_has_decoded_well_beside_others_is_no_suspect() -> None:
    cell = Cell(max_steps_in_flight=2)
    for first in range(3):
        cell.add(make_prompt(5, first), make_params(max_tokens=20))
    cell.step()
    cell.step()
    assert cell.lose_workers() == Verdict()
    assert len(cell.step().sequence_ids) == 3, "all in one step"


def test_a_loss_while_nothing_is_computed_accuses_nobody() -> None:
    cell = Cell()
    cell.add(make_prompt(5), make_params(max_tokens=5))
    assert cell.lose_workers() == Verdict(), "it only waits"


@pytest.mark.parametrize("seed", range(8))
def test_kills_with_progress_between_them_fail_nobody(seed: int) -> None:
    draw = random.Random(seed)
    cell = Cell(
        num_blocks=40,
        max_num_batched_tokens=16,
        max_steps_in_flight=1 + seed % 2,
        enable_prefix_caching=seed % 4 > 1,
        num_host_blocks=16,
        max_draft_tokens=seed % 3,
    )
    expected = {}
    options: list[dict[str, Any]] = [{}, {"n": 2}, {"n": 2, "use_beam_search": True}]
    for number in range(12):
        prompt, chosen = make_prompt(draw.randrange(1, 40), number), draw.choice(options)
        temperature = 0.0 if "use_beam_search" in chosen else 1.0
        params = make_params(max_tokens=20, temperature=temperature, **chosen)
        group_id = cell.add(prompt, params)
        if not chosen:
            expected[group_id] = reference(prompt, max_tokens=20)
    suspects: tuple[Any, ...] = ()

    def when() -> bool:
        # Not while one of those that the last kill struck is still a suspect.
        return draw.random() < 0.1 and not any(each.suspect_until for each in suspects)

    num_kills = 0
    for _ in range(10_000):
        if not cell.has_work:
            break
        cell.step()
        if when():
            verdict = cell.lose_workers()
            num_kills += 1
            suspects = verdict.suspects
            assert verdict.guilty is None
    assert num_kills > 2
    assert not cell.has_work
    for group_id, tokens in expected.items():
        assert cell.tokens[group_id] == tokens


def test_a_kill_while_a_suspect_is_computed_alone_fails_nobody() -> None:
    cell = Cell()
    prompt = make_prompt(7)
    group_id = cell.add(prompt, make_params(max_tokens=3))
    for num_lost_alone in (0, 1):
        cell.scheduler.schedule()
        verdict = cell.lose_workers()
        assert verdict.guilty is None
        assert [each.num_lost_alone for each in verdict.suspects] == [num_lost_alone]
    cell.run()
    assert cell.tokens[group_id] == reference(prompt, max_tokens=3)


def test_a_suspect_that_was_cleared_begins_anew() -> None:
    cell = Cell()
    cell.add(make_prompt(7), make_params(max_tokens=9))
    for _ in range(2):
        cell.scheduler.schedule()
        (suspect,) = cell.lose_workers().suspects
    cell.step()
    assert (suspect.suspect_until, suspect.num_lost_alone) == (0, 0)
    for _ in range(2):
        cell.scheduler.schedule()
        assert cell.lose_workers().guilty is None


@pytest.mark.parametrize(("num_lost_alone", "is_guilty"), [(0, False), (1, True)])
def test_losses_at_another_cell_count(num_lost_alone: int, is_guilty: bool) -> None:
    cell = Cell()
    cell.add(make_prompt(7), make_params(), suspect_until=7, num_lost_alone=num_lost_alone)
    cell.scheduler.schedule()
    assert (cell.lose_workers().guilty is not None) == is_guilty


def test_a_suspect_that_comes_from_another_cell_is_computed_alone() -> None:
    cell = Cell(max_steps_in_flight=2)
    other = cell.add(make_prompt(5), make_params(max_tokens=30))
    cell.step()
    suspect = cell.add(make_prompt(7, 2), make_params(max_tokens=3), suspect_until=7)
    while not (orders := cell.step()).new_sequences:
        pass
    assert len(orders.sequence_ids) == 1
    cell.run()
    assert cell.tokens[suspect] == reference(make_prompt(7, 2), max_tokens=3)
    assert cell.tokens[other] == reference(make_prompt(5), max_tokens=30)
