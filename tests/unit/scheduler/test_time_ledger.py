"""Where the time of each request goes: parts that add up to the whole, whatever happens to it."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.contract.engine_options import PreemptionMode
from quire.contract.time_breakdown import PARTS, TimeBreakdown
from scheduler_svc.policy.progress import GroupTime, Phase, Progress
from scheduler_svc.policy.time_ledger import MAX_INTERVALS, TimeLedger
from tests.unit.scheduler.factories import Cell, make_params, make_prompt

OURS = [
    "queue_step_us",
    "queue_blocks_us",
    "queue_seqs_us",
    "queue_tokens_us",
    "not_ready_us",
    "preempted_us",
    "prefill_us",
    "decode_us",
]


def parts_of(breakdown: TimeBreakdown) -> dict[str, int]:
    """The parts that are not empty."""
    return {name: us for name, us in breakdown.parts.items() if us}


def run_by_the_second(cell: Cell) -> None:
    """Each step takes a second, which passes while the workers run it."""
    while cell.scheduler.has_unfinished:
        step(cell)


def step(cell: Cell) -> None:
    orders = cell.scheduler.schedule(cell.now)
    cell.scheduler.check_invariants()
    cell.now += 1
    if orders is not None:
        cell.take(cell.scheduler.update(cell.model.step(orders), cell.now))
        cell.scheduler.check_invariants()


def seconds(**parts: float) -> dict[str, int]:
    return {f"{name}_us": round(1e6 * value) for name, value in parts.items()}


def test_a_request_alone_prefills_then_decodes() -> None:
    cell = Cell(max_num_batched_tokens=8)
    group_id = cell.add(make_prompt(20), make_params(max_tokens=5), now=0.0)
    cell.now = 0.5
    run_by_the_second(cell)
    # 20 tokens in steps of 8, 8 and 4; the last of them brings the first of five tokens.
    assert parts_of(cell.times[group_id].breakdown) == seconds(queue_step=0.5, prefill=3, decode=4)
    phases = [(each.phase, each.start_s, each.end_s) for each in cell.times[group_id].intervals]
    assert phases == [
        (Phase.QUEUED, 0.0, 0.5),
        (Phase.PREFILL, 0.5, 3.5),
        (Phase.DECODE, 3.5, 7.5),
    ]


def test_time_in_the_queue_is_recorded_by_what_it_waits_for() -> None:
    params = make_params(max_tokens=4)

    def second_of_two(**limits: int) -> dict[str, int]:
        cell = Cell(**limits)
        cell.add(make_prompt(10), params)
        second = cell.add(make_prompt(10, first=9), params)
        run_by_the_second(cell)
        return parts_of(cell.times[second].breakdown)

    assert second_of_two(max_num_seqs=1) == seconds(queue_seqs=4, prefill=1, decode=3)
    assert second_of_two(num_blocks=4) == seconds(queue_blocks=4, prefill=1, decode=3)
    assert second_of_two(max_num_batched_tokens=10) == seconds(queue_tokens=1, prefill=2, decode=3)


def test_time_without_workers_is_the_cells() -> None:
    cell = Cell(max_num_seqs=1)
    first = cell.add(make_prompt(4), make_params(max_tokens=3))
    second = cell.add(make_prompt(4), make_params(max_tokens=1))
    step(cell)
    cell.lose_workers()
    cell.now += 10
    run_by_the_second(cell)
    assert parts_of(cell.times[first].breakdown) == seconds(prefill=2, not_ready=10, decode=1)
    assert parts_of(cell.times[second].breakdown) == seconds(queue_seqs=3, not_ready=10, prefill=1)


def test_time_of_preemption_is_recorded() -> None:
    cell = Cell(num_blocks=6, block_size=4, preemption_mode=PreemptionMode.RECOMPUTE)
    params = make_params(max_tokens=9)
    groups = [cell.add(make_prompt(8), params, now=0.0), cell.add(make_prompt(8, 9), params)]
    run_by_the_second(cell)
    assert cell.scheduler.counters.preemptions > 0
    second = cell.times[groups[1]]
    assert second.breakdown.preempted_us > 0
    assert Phase.PREEMPTED in [each.phase for each in second.intervals]
    check(second, second.breakdown.total_us / 1e6)


def test_tokens_bring_the_account_to_the_groups_that_asked() -> None:
    cell = Cell()
    asked = cell.add(make_prompt(4), make_params(max_tokens=3), include_time_breakdown=True)
    silent = cell.add(make_prompt(4), make_params(max_tokens=3))
    step(cell)
    assert cell.time_breakdowns == {asked: TimeBreakdown(total_us=1_000_000, prefill_us=1_000_000)}
    assert cell.times == {}
    cell.scheduler.abort(asked)
    run_by_the_second(cell)
    assert cell.times[silent].breakdown.total_us == 3_000_000
    assert cell.time_breakdowns[asked].total_us == 1_000_000


def test_the_last_account_is_that_of_the_whole_time() -> None:
    cell = Cell()
    asked = cell.add(make_prompt(4), make_params(max_tokens=3), include_time_breakdown=True)
    run_by_the_second(cell)
    assert cell.time_breakdowns == {asked: cell.times[asked].breakdown}
    assert cell.time_breakdowns[asked].total_us == 3_000_000


def test_a_long_history_is_cut_but_its_sum_is_not() -> None:
    ledger, progress = TimeLedger(), Progress()
    ledger.open(1, include_time_breakdown=False)
    for second in range(1, 101):
        ledger.advance(second)
        ledger.start_prefill(1)
        ledger.advance(second + 0.5)
        ledger.preempt(1)
    ledger.close(1, progress)
    time = progress.times[1]
    assert len(time.intervals) == MAX_INTERVALS + 1
    assert sum(time.breakdown.parts.values()) == time.breakdown.total_us == 100_500_000


def check(time: GroupTime, elapsed_s: float) -> None:
    breakdown = time.breakdown
    assert sum(breakdown.parts.values()) == breakdown.total_us
    assert abs(breakdown.total_us - 1e6 * elapsed_s) <= 1
    assert all(us >= 0 for us in breakdown.parts.values())
    assert not {name for name in PARTS if getattr(breakdown, name)} - set(OURS)
    ends = [each.end_s for each in time.intervals]
    assert [each.start_s for each in time.intervals[1:]] == ends[:-1], "phases follow each other"


# What happens: (seconds that pass, what).
HAPPENINGS = st.lists(
    st.tuples(
        st.floats(0, 100, allow_nan=False),
        st.sampled_from(["add", "step", "step", "step", "lose", "abort"]),
    ),
    min_size=5,
    max_size=60,
)
KINDS: Iterable[dict[str, Any]] = (
    {},
    {"n": 2, "best_of": 3},
    {"use_beam_search": True, "temperature": 0.0, "best_of": 2},
)


@settings(max_examples=60)
@given(HAPPENINGS, st.sampled_from(list(PreemptionMode)), st.randoms(use_true_random=False))
def test_parts_always_add_up_to_the_whole(
    happenings: list[tuple[float, str]], mode: PreemptionMode, rng: Any
) -> None:
    cell = Cell(
        num_blocks=24,
        num_host_blocks=12,
        max_num_seqs=6,
        max_num_batched_tokens=16,
        max_steps_in_flight=2,
        max_model_len=40,
        preemption_mode=mode,
    )
    arrived: dict[int, float] = {}
    ended: dict[int, float] = {}

    def note_ends() -> None:
        ended.update((group_id, cell.now) for group_id in cell.ended - ended.keys())

    for passed_s, what in happenings:
        cell.now += passed_s
        if what == "add":
            params = make_params(max_tokens=rng.randint(1, 12), **rng.choice(list(KINDS)))
            prompt = make_prompt(rng.randint(1, 15), rng.randint(0, 50))
            group_id = cell.add(
                prompt, params, now=cell.now, include_time_breakdown=rng.random() < 0.5
            )
            arrived[group_id] = cell.now
        elif what == "lose":
            cell.lose_workers()
        elif what == "abort" and arrived:
            cell.scheduler.abort(rng.choice(list(arrived)))
        elif cell.has_work:
            cell.step()
            note_ends()
        cell.scheduler.check_invariants()
    while cell.has_work:
        cell.now += rng.random()
        cell.step()
        note_ends()
    for group_id, ended_s in ended.items():
        check(cell.times[group_id], ended_s - arrived[group_id])
