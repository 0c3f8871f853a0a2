"""`make bench-simulator`: the simulator against a real cluster under the same requests.

Fits a cost model to steps of the embedded model on one CPU thread, measures what router and wire
add to a lone request, then sends the same seeded requests to a real cell and to a simulated one.
Prints both side by side, and how far the simulation is off.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from launch.cli.console import cell_status
from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import CellState, Delta, Finished
from quire.observe import log
from router.cells.choice import RoutingPolicy
from simulator.config import CellConfig, Lengths, SimulationConfig, TrafficConfig
from simulator.cost_model import CostModel, StepShape
from simulator.fit import MeasuredStep, fit, fit_error
from simulator.measure import measure_steps
from simulator.metrics import FloatArray, Metrics
from simulator.simulation import assumed_token_s, simulate
from simulator.texts import Library, SimulatedRequest
from simulator.traffic import Traffic

NUM_PROBES = 30
PROMPT_TOKENS = 64
PROBE_TOKENS = 32
INTERVAL_S = 0.1
POLICY = RoutingPolicy.PREFIX_AWARE
BLOCK_SIZE = 16
NUM_BLOCKS = 1200


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client saw of a request: seconds since it began to wait, and tokens."""

    ttft_s: float
    total_s: float
    num_tokens: int

    @property
    def tpot_s(self) -> float:
        """Seconds for each token after the first."""
        return (self.total_s - self.ttft_s) / max(self.num_tokens - 1, 1)


def traffic_config(streams: int, duration_s: float) -> TrafficConfig:
    """Return single turns, some about one of a few documents; a day of the length of the run."""
    return TrafficConfig(
        streams=streams,
        duration_s=duration_s,
        period_s=duration_s,
        num_tenants=4,
        num_documents=60,
        mean_turns=1.0,
        system_prompt=Lengths(60, 0.4, 16, 150),
        document=Lengths(300, 0.4, 100, 500),
        message=Lengths(30, 0.5, 8, 100),
        answer=Lengths(80, 0.6, 8, 200),
    )


def traffic_of(config: SimulationConfig) -> Traffic:
    """Return the traffic that a simulation makes."""
    library = Library(config.traffic, config.seed)
    token_s = assumed_token_s(config, library)
    return Traffic(config.traffic, library, config.cell.max_model_len, token_s, config.seed)


def requests_of(config: SimulationConfig) -> list[SimulatedRequest]:
    """Return the requests that a simulation of single turns makes."""
    traffic = traffic_of(config)
    num_intervals = round(config.traffic.duration_s / INTERVAL_S)
    return [
        request
        for interval in range(num_intervals)
        for request in traffic.arrivals(interval * INTERVAL_S, (interval + 1) * INTERVAL_S)
    ]


async def ask(client: AsyncClient, prompt: list[int], num_tokens: int, seed: int) -> Answer:
    """Run one request; time counts from the call."""
    params = SamplingParams(temperature=0.8, seed=seed, max_tokens=num_tokens, ignore_eos=True)
    began, first_s, received = time.perf_counter(), 0.0, 0
    async for event in client.stream(prompt, params):
        match event:
            case Delta():
                first_s = first_s or time.perf_counter() - began
                received += len(event.token_ids)
            case Finished():
                assert received == event.num_output_tokens == num_tokens
    return Answer(first_s, time.perf_counter() - began, received)


@dataclass(frozen=True, slots=True)
class Lone:
    """Medians over requests that were alone."""

    ttft_s: float
    tpot_s: float


async def probe(client: AsyncClient) -> Lone:
    """Measure requests one after another."""
    prompts = [[4, index, *[7] * (PROMPT_TOKENS - 2)] for index in range(NUM_PROBES + 3)]
    answers = [
        await ask(client, prompt, PROBE_TOKENS, seed) for seed, prompt in enumerate(prompts)
    ][3:]
    return Lone(
        statistics.median(each.ttft_s for each in answers),
        statistics.median(each.tpot_s for each in answers),
    )


async def load(
    client: AsyncClient, requests: list[SimulatedRequest], library: Library
) -> list[Answer]:
    """Send every request at its time, whatever has become of the others."""
    prompts = [library.prompt(each) for each in requests]
    began = time.perf_counter()

    async def send(request: SimulatedRequest, prompt: list[int]) -> Answer:
        await asyncio.sleep(began + request.arrival_s - time.perf_counter())
        late_s = time.perf_counter() - began - request.arrival_s
        answer = await ask(client, prompt, request.num_output_tokens, request.request_id)
        return replace(answer, ttft_s=answer.ttft_s + late_s, total_s=answer.total_s + late_s)

    return list(await asyncio.gather(*map(send, requests, prompts)))


@dataclass(frozen=True, slots=True)
class RealRun:
    """A real cluster's answers, and how its cell's counters changed meanwhile."""

    answers: list[Answer]
    before: CellState
    after: CellState
    seconds: float


async def run_real(
    configure: Callable[[Lone], SimulationConfig],
) -> tuple[RealRun, SimulationConfig]:
    """Start a cluster, probe it, load it with the requests of what is made of that, stop it."""
    cluster = Cluster(
        ClusterConfig(
            model=embedded_model(),
            port=None,
            grpc_port=0,
            device="cpu",
            block_size=BLOCK_SIZE,
            num_gpu_blocks_override=NUM_BLOCKS,
            num_threads=1,
        )
    )
    await cluster.start()
    # Clients have machines of their own; here they should not take the cluster's cores.
    os.nice(10)
    try:
        address = cluster.router.address
        async with AsyncClient(address) as client:
            config = configure(await probe(client))
            requests = requests_of(config)
            print(f"{len(requests)} requests in {config.traffic.duration_s:g} s")
            await asyncio.sleep(1.5)  # longer than an idle cell's reports are apart
            before, began = (await cell_status(address)).state, time.perf_counter()
            answers = await load(client, requests, Library(config.traffic, config.seed))
            seconds = time.perf_counter() - began
            await asyncio.sleep(1.5)
            after = (await cell_status(address)).state
    finally:
        await cluster.stop()
    return RealRun(answers, before, after, seconds), config


def with_measured_constants(model: CostModel, lone: Lone) -> CostModel:
    """Return the model with what the services add to a lone request.

    To a step what its tokens do not explain, to the first token what its step does not.
    """
    context = PROMPT_TOKENS + PROBE_TOKENS // 2
    service_us = max(0.0, 1e6 * lone.tpot_s - model.step_us(StepShape(1, 1, context)))
    model = replace(model, base_us=model.base_us + service_us)
    num_pairs = PROMPT_TOKENS * (PROMPT_TOKENS + 1) // 2
    prompt_us = model.step_us(StepShape(PROMPT_TOKENS, 1, PROMPT_TOKENS, num_pairs))
    outside_us = max(0.0, 1e6 * lone.ttft_s - prompt_us - model.dispatch_us)
    return replace(model, request_us=outside_us / 2, answer_us=outside_us / 2)


def figures_of_answers(ttft_ms: FloatArray, tpot_ms: FloatArray) -> dict[str, float]:
    """Return the percentiles that are compared."""
    return {
        f"{name} p{percentile}, ms": float(np.percentile(values, percentile))
        for name, values in (("time to first token", ttft_ms), ("time per token", tpot_ms))
        for percentile in (50, 95)
    }


def figures_of_real(real: RealRun) -> dict[str, float]:
    """Return what a real run came to."""
    before, after = real.before, real.after
    looked_up = after.prefix_cache_queries_total - before.prefix_cache_queries_total
    found = after.prefix_cache_hits_total - before.prefix_cache_hits_total
    return {
        **figures_of_answers(
            np.array([1e3 * each.ttft_s for each in real.answers]),
            np.array([1e3 * each.tpot_s for each in real.answers]),
        ),
        "tokens/s, start to end": sum(each.num_tokens for each in real.answers) / real.seconds,
        "prefix hit rate, %": 100 * found / looked_up,
        "steps": after.steps_total - before.steps_total,
    }


def figures_of_simulated(metrics: Metrics) -> dict[str, float]:
    """Return the same of a simulated run."""
    _, arrival_s, first_s, end_s, num_tokens, _ = np.array(metrics.answers).T
    usage = metrics.usage
    return {
        **figures_of_answers(
            1e3 * (first_s - arrival_s),
            1e3 * (end_s - first_s) / np.maximum(num_tokens - 1, 1),
        ),
        "tokens/s, start to end": float(num_tokens.sum() / end_s.max()),
        "prefix hit rate, %": 100 * usage.num_tokens_found / usage.num_tokens_looked_up,
        "steps": usage.num_steps,
    }


def at_speed(config: SimulationConfig, factor: float, services_us: float) -> SimulationConfig:
    """Return the simulation with workers that take `factor` times as long."""
    model = config.cell.cost_model
    slower = replace(
        model,
        base_us=factor * (model.base_us - services_us) + services_us,
        token_us=factor * model.token_us,
        sequence_us=factor * model.sequence_us,
        context_us=factor * model.context_us,
        pair_us=factor * model.pair_us,
    )
    return replace(config, cell=replace(config.cell, cost_model=slower))


def slowdown(real: RealRun, config: SimulationConfig, services_us: float) -> float:
    """Return how much longer the worker took for its steps than the fit says.

    What else ran on the machine, and the other services' use of its caches. Longer steps hold more
    sequences, so the factor at which simulated steps take as long as real ones is looked for.
    """
    before, after = real.before, real.after
    worker_us = after.model_us_total + after.sample_us_total
    worker_us -= before.model_us_total + before.sample_us_total
    real_us = worker_us / (after.steps_total - before.steps_total)
    factor = 1.0
    for _ in range(6):
        usage = simulate(at_speed(config, factor, services_us), POLICY).usage
        factor *= real_us / (1e6 * usage.busy_s / usage.num_steps - services_us)
    return factor


def print_comparison(real: RealRun, config: SimulationConfig, services_us: float) -> None:
    """Simulate the same requests, as the fit says and at the worker's speed of that run."""
    factor = slowdown(real, config, services_us)
    print(f"in this run the worker took {factor:.2f} times as long for its steps as when fitted\n")
    runs = [simulate(each, POLICY) for each in (config, at_speed(config, factor, services_us))]
    for metrics in runs:
        assert metrics.num_answered == len(real.answers), "not the same requests"
    fitted, slowed = map(figures_of_simulated, runs)
    print(f"{'':<26} {'real':>10} {'as fitted':>10} {'error':>8} {'as slow':>10} {'error':>8}")
    for name, measured in figures_of_real(real).items():
        columns = "".join(
            f" {each[name]:>10.1f} {each[name] / measured - 1:>+8.1%}" for each in (fitted, slowed)
        )
        print(f"{name:<26} {measured:>10.1f}{columns}")


def main() -> None:
    """Measure, run both, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--duration", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    log.configure("bench", "warning")

    steps: list[MeasuredStep] = measure_steps(embedded_model(), lambda _: None)
    model = fit("embedded demo model, one CPU thread", "measured", steps[::2])
    error = fit_error(model, steps[1::2])
    print("cost model, microseconds of a step")
    for name in ("base_us", "token_us", "sequence_us", "context_us", "pair_us"):
        print(f"  {name:<12} {model.prices[name]:12.4f}")
    print(
        f"  {len(steps[1::2])} steps it was not fitted to: error {error.median:.1%} in the median, "
        f"{error.p90:.1%} in nine of ten, {error.bias:+.1%} on average"
    )

    def configure(lone: Lone) -> SimulationConfig:
        """Complete the model with what a lone request shows."""
        whole = with_measured_constants(model, lone)
        print("a lone request, from which what the model lacks is taken")
        print(
            f"  first token after {1e3 * lone.ttft_s:.1f} ms, of which "
            f"{(whole.request_us + whole.answer_us) / 1e3:.1f} outside the step"
        )
        print(
            f"  {1e3 * lone.tpot_s:.2f} ms for each further one, of which "
            f"{(whole.base_us - model.base_us) / 1e3:.2f} between steps\n"
        )
        config = SimulationConfig(
            traffic=traffic_config(arguments.streams, arguments.duration),
            cell=CellConfig(
                whole,
                num_blocks=NUM_BLOCKS,
                block_size=BLOCK_SIZE,
                max_num_batched_tokens=2048,
                max_model_len=1024,
            ),
            num_cells=1,
            num_routers=1,
            warmup_s=0.0,
            seed=arguments.seed,
        )
        # The same requests, however long steps are taken to be later.
        rate = traffic_of(config).peak_rate
        return replace(config, traffic=replace(config.traffic, peak_rate=rate))

    real, config = asyncio.run(run_real(configure))
    print_comparison(real, config, config.cell.cost_model.base_us - model.base_us)


if __name__ == "__main__":
    main()
