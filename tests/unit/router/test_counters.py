"""What a router counts of a request, whatever becomes of it."""

import asyncio

import pytest

from quire.contract.errors import OverloadedError, UnavailableError
from quire.contract.outputs import Delta, Event, Finished, FinishReason, Started
from router.metrics import RouterAliases
from router.requests.counters import Counters, RequestOutcome

STARTED = Started("id", 7, seed=1)


def finished(reason: FinishReason = FinishReason.STOP, index: int = 0) -> Finished:
    return Finished(reason, 3, None, index)


def delta(*token_ids: int) -> Delta:
    return Delta("text", token_ids)


@pytest.mark.parametrize(
    ("num_outputs", "events", "expected"),
    [
        (1, [STARTED, delta(1, 2), finished()], RequestOutcome.FINISHED),
        (2, [STARTED, finished(), finished(index=1)], RequestOutcome.FINISHED),
        (1, [STARTED, delta(1), finished(FinishReason.ABORT)], RequestOutcome.ABORTED),
        (2, [STARTED, finished(), finished(FinishReason.ABORT, 1)], RequestOutcome.ABORTED),
        (1, [STARTED, finished(FinishReason.ERROR)], RequestOutcome.FAILED),
        # Its client has gone before the last output ended.
        (2, [STARTED, finished()], RequestOutcome.CANCELLED),
        (1, [], RequestOutcome.CANCELLED),
    ],
)
def test_a_request_is_counted_once_by_its_outcome(
    num_outputs: int, events: list[Event], expected: RequestOutcome
) -> None:
    counters = Counters()
    record = counters.open("alice")
    record.accept("m", num_outputs)
    for event in events:
        assert not counters.requests, "counted before its last event is written"
        record.count(event)
    record.close()
    record.close()

    assert counters.requests == {("m", expected): 1}
    assert counters.num_open == 0
    num_tokens = sum(len(event.token_ids) for event in events if isinstance(event, Delta))
    assert counters.output_tokens["m"] == num_tokens == counters.key_output_tokens["alice"]
    assert counters.prompt_tokens["m"] == (7 if STARTED in events else 0)
    assert counters.key_requests == {"alice": 1}
    assert counters.latencies["m"].whole.count == (expected is RequestOutcome.FINISHED)


def test_an_error_before_the_start_is_a_refusal_and_after_it_a_failure() -> None:
    counters = Counters()
    early, late, broken = counters.open(), counters.open(), counters.open()
    early.fail(OverloadedError("full", 1))
    late.accept("m", 1)
    late.count(STARTED)
    late.fail(UnavailableError("gone"))
    broken.fail(ValueError("a fault"))
    for record in (early, late, broken):
        record.close()

    assert counters.requests == {
        ("", RequestOutcome.REFUSED): 2,
        ("m", RequestOutcome.FAILED): 1,
    }
    assert counters.errors == {
        ("RESOURCE_EXHAUSTED", "QUEUE_FULL"): 1,
        ("UNAVAILABLE", "UNAVAILABLE"): 1,
        ("INTERNAL", "INTERNAL"): 1,
    }
    assert not counters.key_requests


async def test_latencies_are_of_messages_that_bring_tokens() -> None:
    counters = Counters()
    record = counters.open()
    record.accept("m", 1)
    record.count(STARTED)
    record.count(Delta("text held back", ()))
    await asyncio.sleep(0.02)
    record.count(delta(1))
    record.count(delta(2, 3))
    record.count(finished())

    latencies = counters.latencies["m"]
    assert latencies.queue.count == latencies.first_token.count == 1
    assert latencies.between_tokens.count == 1
    assert 0.02 <= latencies.first_token.total <= latencies.whole.total
    assert latencies.between_tokens.total <= latencies.whole.total - 0.02


def test_outputs_have_vllms_reasons_under_vllms_name() -> None:
    counters = Counters()
    record = counters.open()
    record.accept("m", 3)
    reasons = (FinishReason.LENGTH, FinishReason.ERROR, FinishReason.NO_TOKEN)
    for event in (STARTED, *(finished(reason, index) for index, reason in enumerate(reasons))):
        record.count(event)
    record.close()
    outputs = next(RouterAliases(counters).collect())
    assert {
        each.labels["finished_reason"]: each.value
        for each in outputs.samples
        if each.name == "vllm:request_success_total"
    } == {"stop": 0, "length": 1, "abort": 0, "error": 2}
