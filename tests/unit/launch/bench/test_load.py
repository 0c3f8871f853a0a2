"""Requests are sent when they are due, and no more at once than may be."""

import asyncio

import numpy as np

from launch.bench.datasets import Sample
from launch.bench.load import run_load
from launch.bench.outcome import Outcome
from quire.contract.errors import UnavailableError


class Server:
    """Answers each request with one token after a turn of the event loop; fails every third."""

    model = ""

    def __init__(self) -> None:
        self.under_way = self.most = 0
        self.prompts: list[object] = []

    async def first_model(self) -> str:
        return "demo_model"

    async def send(self, sample: Sample, outcome: Outcome) -> None:
        self.prompts.append(sample.prompt)
        fails = len(self.prompts) % 3 == 0
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if fails:
            raise UnavailableError("away")
        outcome.arrivals.add(outcome.started, 1)
        outcome.num_output_tokens = 1

    async def close(self) -> None:
        pass


SAMPLES = [Sample(f"prompt {number}", 2, 1) for number in range(12)]


async def test_outcomes_are_in_order_and_failures_are_noted() -> None:
    done: list[int] = []
    run = await run_load(Server(), SAMPLES, np.zeros(12), None, done.append)
    assert len(run.outcomes) == 12
    assert [each.error for each in run.outcomes] == ["", "", "away"] * 4
    assert sorted(done) == sorted(int(not each.error) for each in run.outcomes)
    assert all(each.started >= each.due for each in run.outcomes)
    assert run.duration > 0
    assert run.client_cpu > 0


async def test_no_more_are_under_way_than_may_be() -> None:
    for limit in (1, 3):
        server = Server()
        await run_load(server, SAMPLES, np.zeros(12), limit, lambda _: None)
        assert server.most == limit
    server = Server()
    await run_load(server, SAMPLES, np.zeros(12), None, lambda _: None)
    assert server.most == 12


async def test_a_request_is_not_sent_before_it_is_due() -> None:
    times = np.arange(12) * 0.002
    run = await run_load(Server(), SAMPLES, times, None, lambda _: None)
    began = run.outcomes[0].due
    assert np.allclose([each.due - began for each in run.outcomes], times)
    assert all(each.started >= each.due for each in run.outcomes)
