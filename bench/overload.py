"""Overload and floods, in the simulated time of one cell: `python -m bench.overload`.

The scheduler, its queues and its predictions are the real ones; a step takes what the measured cost
model of the demo model says. First a cell at its capacity and at three times that, where requests
have deadlines: with refusals by prediction, and as a plain queue whose clients leave at their
deadline. Then a tenant beside another one that sends a hundred times as much.
"""

import random
import statistics
import sys
from dataclasses import dataclass, field
from heapq import heapify, heappop

from quire.contract.errors import OverloadedError
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.steps import StepResult
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.first_token_times import FirstTokenTimes
from scheduler_svc.policy.group_queue import queue_order
from scheduler_svc.policy.scheduler import Scheduler
from simulator.presets import DEMO_CPU
from simulator.step_shapes import StepShapes

MAX_NUM_SEQS = 16
MAX_NUM_BATCHED_TOKENS = 256
DEADLINE_S = 5.0
SECONDS = 40.0


@dataclass
class Request:
    """A request and what becomes of it; times in simulated seconds."""

    at_s: float
    tenant: str
    num_prompt_tokens: int
    num_output_tokens: int
    deadline_s: float = float("inf")
    predicted_s: float = 0.0
    first_token_s: float | None = None
    ended_s: float | None = None
    num_tokens: int = 0


@dataclass
class Run:
    """A cell that serves requests, one step after another.

    Attributes:
        predicts: whether it refuses what would be late.
        step_s: of the steps so far.
    """

    predicts: bool
    step_s: list[float] = field(default_factory=list)

    def serve(self, requests: list[Request], until_s: float) -> None:
        """Serve requests, in order of their arrival, until the time is over."""
        self.scheduler = Scheduler(
            BlockSpaceManager(16, 4096, 0.0),
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            max_num_seqs=MAX_NUM_SEQS,
            max_model_len=2048,
            eos_token_ids=(),
            enable_prefix_caching=False,
        )
        times, shapes, now = FirstTokenTimes(MAX_NUM_BATCHED_TOKENS), StepShapes(), 0.0
        arriving = sorted(requests, key=lambda each: each.at_s)[::-1]
        live: dict[int, Request] = {}
        deadlines: list[tuple[float, int]] = []
        while now < until_s:
            while arriving and arriving[-1].at_s <= now:
                request = arriving.pop()
                if (group_id := self._admit(request, times, now)) is not None:
                    live[group_id] = request
                    deadlines.append((request.deadline_s, group_id))
            heapify(deadlines)
            while deadlines and deadlines[0][0] <= now:
                _, group_id = heappop(deadlines)
                self.scheduler.abort(group_id)
                live.pop(group_id, None)
            outputs = self.scheduler.schedule(now)
            if outputs is None:
                if not arriving:
                    return
                now = max(now, arriving[-1].at_s)
                continue
            shape, sampling = shapes.measure(outputs)
            step_s = 1e-6 * DEMO_CPU.step_us(shape)
            now += step_s
            self.step_s.append(step_s)
            progress = self.scheduler.update(StepResult(sampling, [1] * len(sampling)), now)
            queues = self.scheduler.queues
            times.observe_step(shape.num_tokens, 1e6 * step_s, queues, now)
            for group_id in progress.group_ids:
                request = live[group_id]
                request.num_tokens += 1
                if request.first_token_s is None:
                    request.first_token_s = now
                    if request.predicted_s:
                        times.observe_first_token(request.predicted_s, now - request.at_s, now)
            for group_id in progress.ended_group_ids:
                live.pop(group_id).ended_s = now

    def _admit(self, request: Request, times: FirstTokenTimes, now: float) -> int | None:
        queues = self.scheduler.queues
        params = SamplingParams(seed=0, max_tokens=request.num_output_tokens, ignore_eos=True)
        order = queue_order(now, 0, 0.0, sys.maxsize)
        num_ahead = queues.waiting.num_ahead(request.tenant, 1.0, order)
        request.predicted_s = times.predict(
            request.num_prompt_tokens, num_ahead, queues.num_running_seqs
        )
        if self.predicts and (num_ahead or queues.num_running_seqs == MAX_NUM_SEQS):
            prediction = times.prediction(request.predicted_s, params, queues.num_running_seqs, now)
            try:
                prediction.check(request.deadline_s - now)
            except OverloadedError:
                return None
        prompt = [1] * request.num_prompt_tokens
        return self.scheduler.add(Submission(prompt, params, tenant=request.tenant), now)[0]


def traffic(
    rate: float, tenant: str, seed: int, deadline_s: float = float("inf"), seconds: float = SECONDS
) -> list[Request]:
    """Return requests that come at random, so many a second on average."""
    draw, at_s, requests = random.Random(seed), 0.0, list[Request]()
    while (at_s := at_s + draw.expovariate(rate)) < seconds:
        sizes = draw.randint(32, 128), draw.randint(32, 96)
        requests.append(Request(at_s, tenant, *sizes, at_s + deadline_s))
    return requests


def goodput(predicts: bool, rate: float) -> float:
    """Return the requests a second that end before their deadline."""
    requests = traffic(rate, "all", 1, DEADLINE_S)
    Run(predicts).serve(requests, SECONDS)
    return sum(each.ended_s is not None for each in requests) / SECONDS


def capacity() -> float:
    """Return the requests a second that a cell ends which always has some waiting."""
    requests = traffic(100.0, "all", 1, seconds=5.0)
    Run(False).serve(requests, SECONDS)
    ended = [each.ended_s for each in requests if each.ended_s is not None]
    return len(ended) / max(ended)


def p99_ms(requests: list[Request]) -> float:
    """Return the 99th percentile of the times to the first token."""
    waits = sorted(each.first_token_s - each.at_s for each in requests if each.first_token_s)
    return 1e3 * waits[int(0.99 * len(waits))]


def main() -> None:
    """Print both."""
    full = capacity()
    print(f"capacity {full:.1f} requests/s, deadline {DEADLINE_S:g} s, {SECONDS:g} s simulated")
    print("load  goodput with refusals  plain FCFS")
    for load in (0.9, 1.0, 3.0):
        ours, plain = goodput(True, load * full), goodput(False, load * full)
        print(
            f"{load:>4}  {ours:>12.1f} ({ours / full:4.0%})  {plain:>10.1f} ({plain / full:4.0%})"
        )
    light = full / 50
    for beside in ("alone", "beside a flood of 100x", "beside it as one tenant"):
        own = traffic(light, "light", 2)
        flood = [] if beside == "alone" else traffic(100 * light, "flood", 3)
        if beside.endswith("one tenant"):
            for each in flood:
                each.tenant = "light"
        run = Run(False)
        run.serve([*own, *flood], SECONDS)
        step_ms = 1e3 * statistics.median(run.step_s)
        ended = sum(each.ended_s is not None for each in own) / len(own)
        print(
            f"light tenant {beside}: TTFT p99 {p99_ms(own):.0f} ms, median step {step_ms:.1f} ms, "
            f"{ended:.0%} of its requests ended"
        )
    both = [*traffic(100.0, "greedy", 4), *traffic(full, "fair", 5)]
    Run(False).serve(both, SECONDS)
    served = {
        name: sum(
            each.num_prompt_tokens * (each.first_token_s is not None) + each.num_tokens
            for each in both
            if each.tenant == name
        )
        for name in ("greedy", "fair")
    }
    share = 2 * served["fair"] / sum(served.values())
    print(f"a tenant of {full:.0f} requests/s beside one of 100: {share:.0%} of its fair share")


if __name__ == "__main__":
    main()
