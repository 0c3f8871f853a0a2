"""Sending requests when they are due, and waiting for all answers."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from launch.bench.clients.base import BenchClient
from launch.bench.datasets import Sample
from launch.bench.outcome import Outcome
from quire.contract.errors import QuireError


@dataclass(frozen=True, slots=True)
class Run:
    """What came of all requests.

    Attributes:
        outcomes: one for each, in the order in which they were due.
        duration: seconds from the start until the last had ended.
        client_cpu: seconds of processor time that this process took meanwhile.
    """

    outcomes: list[Outcome]
    duration: float
    client_cpu: float


async def run_load(
    client: BenchClient,
    samples: Sequence[Sample],
    times: npt.NDArray[np.float64],
    max_concurrency: int | None,
    advance: Callable[[int], None],
) -> Run:
    """Send requests when they are due, and return what came of them.

    Args:
        client: of the server.
        samples: what to send.
        times: [requests] when each is due, in seconds from now, ascending.
        max_concurrency: most under way; others wait for one to end. None for no limit.
        advance: called with the number of tokens of each that is over.
    """
    slots = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()

    async def send(sample: Sample, outcome: Outcome) -> None:
        async with slots:
            outcome.started = outcome.ended = time.perf_counter()
            try:
                await client.send(sample, outcome)
            except QuireError as error:
                outcome.error = error.message
        advance(outcome.num_output_tokens or len(outcome.arrivals))

    cpu = time.process_time()
    began = time.perf_counter()
    outcomes, tasks = [], []
    for sample, due in zip(samples, (began + times).tolist(), strict=True):
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        outcome = Outcome(due, sample.num_prompt_tokens)
        outcomes.append(outcome)
        tasks.append(asyncio.create_task(send(sample, outcome)))
    await asyncio.gather(*tasks)
    return Run(outcomes, time.perf_counter() - began, time.process_time() - cpu)
