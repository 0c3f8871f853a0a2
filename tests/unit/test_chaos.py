"""What chaos reports: an answer that differs in anything is found, and waits go to their cause."""

from dataclasses import replace

import grpc
import pytest

from quire.contract.outputs import CellState, TokenLogprobs
from tests.chaos import soak
from tests.chaos.hostile import RIGHT_CODES, Attack, answered_code
from tests.chaos.soak import GONE_WITHIN_S, MIN_WARM_UP, NUM_ROUNDS, TASKS_APART, Remains
from tests.chaos.trouble import KILLS_AND_FREEZES, Disturbance, plans
from tests.chaos.verdict import judge, stalls
from tests.chaos.visits import Ending, Stage, Tally, visits
from tests.chaos.workload import Answer, Job, Output, Stream

JOB = Job("sampled", 0)
LOGPROBS = (TokenLogprobs((7,), (-0.5,), (1,)),)
OUTPUT: Output = ((7, 8, 9), "abc", LOGPROBS, -1.5, "length", None)
EXPECTED: Answer = ((OUTPUT,), ())


def stream(
    output: Output = OUTPUT, token_times: tuple[float, ...] = (1.0, 2.0, 9.0), error: str = ""
) -> Stream:
    return Stream(
        JOB,
        began_at=0.5,
        token_times=list(token_times),
        answer=None if error else ((output,), ()),
        tokens={0: list(output[0])},
        error=error,
        ended_at=token_times[-1],
    )


@pytest.mark.parametrize(
    ("changed", "how"),
    [
        (stream(), "none"),
        (stream(((7, 8, 9, 9), *OUTPUT[1:])), "1 by duplicate"),
        (stream(((7, 8), *OUTPUT[1:])), "1 by loss"),
        (stream(((7, 8, 1), *OUTPUT[1:])), "1 by tokens"),
        (stream((OUTPUT[0], "abd", *OUTPUT[2:])), "1 by text or log-probabilities"),
        (stream((*OUTPUT[:2], (), *OUTPUT[3:])), "1 by text or log-probabilities"),
        (stream((*OUTPUT[:3], -1.25, *OUTPUT[4:])), "1 by text or log-probabilities"),
        (stream(error="UnavailableError: gone"), "1 by error"),
    ],
)
def test_an_answer_that_differs_is_reported(changed: Stream, how: str) -> None:
    verdict = judge([changed], {JOB: EXPECTED}, {JOB: 1.0}, [])
    assert f"differing from the undisturbed run: {how}" in verdict.lines
    assert verdict.num_wrong == (how != "none")


def test_a_wait_counts_for_the_first_disturbance_in_it_once_for_each_stream() -> None:
    disturbances = [Disturbance("kill worker", 3.0), Disturbance("freeze router", 4.0)]
    found = stalls(disturbances, [stream(), stream(token_times=(1.0, 2.0, 2.5, 3.75))])
    assert found == {"kill worker": [7.0, 1.25]}


def test_plans_follow_from_the_seed_and_have_five_kills_for_two_freezes() -> None:
    todo = plans(3, 35, 5.0)
    assert todo == plans(3, 35, 5.0)
    assert todo != plans(4, 35, 5.0)
    freezes = [each for each in todo if each.freeze_s]
    kills, frozen = KILLS_AND_FREEZES
    assert len(freezes) * (kills + frozen) == len(todo) * frozen
    assert all(3.0 <= each.freeze_s <= 20.0 for each in freezes)


def test_a_code_that_is_not_right_is_counted() -> None:
    attack = Attack("router", "127.0.0.1:1", 1)
    for code in RIGHT_CODES:
        attack.record("noise", code.name)
    attack.record("frames", "closed")
    assert attack.errors == []
    attack.record("noise", "INTERNAL", " of Generate, lost")
    attack.record("frames", "refused")
    assert attack.errors == ["noise: INTERNAL of Generate, lost", "frames: refused"]
    assert attack.codes["noise", "INTERNAL"] == attack.codes["frames", "refused"] == 1


CLEAN = Remains({"router": 100.0}, {"router": 5}, 0, (120, 40))


def wrong_of(last: Remains, failed: int = 0, gone_s: float = 15.0) -> int:
    """What a soak counts as wrong that ends like this."""
    tally = Tally(unexpected=["UnavailableError: gone"] * failed)
    tally.ends["short", Ending.ITSELF, Stage.LAST] = NUM_ROUNDS * MIN_WARM_UP
    rounds = [*([CLEAN] * (NUM_ROUNDS + 1)), last]
    waits = {kind: [gone_s] for kind in GONE_WITHIN_S}
    return soak.judge(rounds, tally, waits, CellState())[1]


async def test_the_code_that_a_service_answered_counts_though_a_write_came_after() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ends: list[str] = []
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/quire.v1.Nowhere/Do")(b"")
            call.add_done_callback(lambda call: ends.append(repr(call)))
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(None)
    assert answered_code([*ends, "StatusCode.INTERNAL"]) is grpc.StatusCode.UNIMPLEMENTED
    assert answered_code(["no status at all"]) is None


def test_whatever_a_soak_leaves_behind_is_counted() -> None:
    assert wrong_of(CLEAN) == 0
    assert wrong_of(replace(CLEAN, memory_mib={"router": 100.9})) == 0
    assert wrong_of(replace(CLEAN, memory_mib={"router": 101.0})) == 1
    assert wrong_of(replace(CLEAN, tasks={"router": 6 + TASKS_APART})) == 1
    assert wrong_of(replace(CLEAN, open_streams=2)) == 2
    assert wrong_of(replace(CLEAN, free_blocks=(119, 40))) == 1
    assert wrong_of(CLEAN, failed=3) == 3
    assert wrong_of(CLEAN, gone_s=20.5) == 1, "a client that was stopped"


def test_requests_of_a_soak_end_in_every_way_at_every_stage() -> None:
    drawn = list(visits(3, 2000))
    assert drawn == list(visits(3, 2000))
    asked = {(each.ending, each.stage) for each in drawn}
    assert asked == {(ending, stage) for ending in Ending for stage in Stage}
    assert len({each.request_id for each in drawn}) == len(drawn)
