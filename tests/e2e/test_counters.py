"""The counters of a cluster are exactly what its clients counted."""

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field

from launch.cluster.supervisor import Cluster
from quire import AsyncClient, SamplingParams
from quire.contract.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    QuireError,
)
from quire.contract.outputs import Delta, Finished, FinishReason, Started
from tests.documented_metrics import documented_aliases
from tests.e2e.admin_ports import MODEL, PROMPT, scrape, scrape_until
from tests.e2e.conftest import StartCluster
from tests.scraping import Scrape

NUM_REQUESTS = 1000
CONCURRENCY = 96
# Fewer than clients, so that some are turned away.
SMALL_QUEUE = {"max_num_seqs": 16, "max_waiting": 24}


@dataclass
class Seen:
    """What clients counted."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    outputs: Counter[FinishReason] = field(default_factory=Counter)
    num_started: int = 0
    num_with_tokens: int = 0
    num_token_messages: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Clients:
    """Requests of all kinds, and what came of them."""

    def __init__(self, client: AsyncClient, stop_token_id: int, stop: str) -> None:
        self.seen = Seen()
        self._client = client
        self._kinds: list[tuple[SamplingParams, str]] = [
            (SamplingParams(seed=1, max_tokens=2, ignore_eos=True), "to its end"),
            (SamplingParams(seed=2, max_tokens=3, ignore_eos=True, n=2), "to its end"),
            (SamplingParams(temperature=0, max_tokens=64, stop_token_ids=(stop_token_id,)), ""),
            (SamplingParams(temperature=0, max_tokens=64, stop=(stop,)), ""),
            (SamplingParams(seed=3, max_tokens=4, n=2, best_of=3, ignore_eos=True), ""),
            (SamplingParams(temperature=0, max_tokens=4, best_of=2, use_beam_search=True), ""),
            (SamplingParams(seed=4, max_tokens=900, ignore_eos=True), "aborted"),
            (SamplingParams(seed=5, max_tokens=1), "no such token"),
            (SamplingParams(seed=6, max_tokens=1), "no such model"),
        ]

    async def run(self, count: int) -> None:
        """Ask so many times, as many at once as may be."""
        turns = iter(range(count))

        async def ask_on() -> None:
            for index in turns:
                params, fate = self._kinds[index % len(self._kinds)]
                await self._ask(f"request-{index}", params, fate)

        await asyncio.gather(*(ask_on() for _ in range(CONCURRENCY)))

    async def _ask(self, request_id: str, params: SamplingParams, fate: str) -> None:
        seen, reasons, has_tokens = self.seen, [], False
        prompt = [2**31] if fate == "no such token" else PROMPT
        model = "no-such-model" if fate == "no such model" else ""
        try:
            async for event in self._client.stream(
                prompt, params, request_id=request_id, model=model
            ):
                match event:
                    case Started():
                        seen.num_started += 1
                        seen.prompt_tokens += event.num_prompt_tokens
                        if fate == "aborted":
                            assert await self._client.abort(request_id)
                    case Delta():
                        has_tokens |= bool(event.token_ids)
                        seen.num_token_messages += bool(event.token_ids)
                        seen.output_tokens += len(event.token_ids)
                    case Finished():
                        reasons.append(event.finish_reason)
        except QuireError as error:
            seen.outcomes["refused"] += 1
            seen.errors[error.code, error.reason] += 1
            return
        seen.outcomes["aborted" if FinishReason.ABORT in reasons else "finished"] += 1
        seen.outputs.update(reasons)
        seen.num_with_tokens += has_tokens

    async def leave(self) -> int:
        """Begin a request and go away in the midst of it; return the tokens that came."""
        params = SamplingParams(seed=7, max_tokens=900, ignore_eos=True)
        async with aclosing(self._client.stream(PROMPT, params)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    return len(event.token_ids)
        raise AssertionError("it ended before its client went")


async def test_counters_are_what_a_thousand_clients_counted(start_cluster: StartCluster) -> None:
    async with (
        start_cluster(**SMALL_QUEUE, admin_port=0) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        alone = await client.generate(PROMPT, SamplingParams(temperature=0, max_tokens=8))
        before = await scrape(cluster, "router")
        clients = Clients(client, alone.token_ids[3], alone.text[2:5])
        await clients.run(NUM_REQUESTS)
        # At once: each client that has its answer is counted.
        router = await scrape(cluster, "router")

        seen = clients.seen
        assert sum(seen.outcomes.values()) == NUM_REQUESTS
        _check_router(router, seen, before)
        scheduler = await scrape_until(cluster, "scheduler", is_idle, "the scheduler is idle")
        _check_cell(scheduler, await scrape(cluster, "worker 0"), seen)
        await _check_aliases(cluster, router, scheduler)

        # A client that goes away is counted once the router has noticed, with what it was sent.
        num_leaving = 20
        num_read = sum(await asyncio.gather(*(clients.leave() for _ in range(num_leaving))))
        left = await scrape_until(
            cluster,
            "router",
            lambda page: page("quire_router_open_requests") == 0,
            "the router has noticed which clients have gone",
        )
        cancelled = left("quire_router_requests_total", model=MODEL, outcome="cancelled")
        assert cancelled == num_leaving
        tokens = "quire_router_output_tokens_total"
        assert left(tokens, model=MODEL) - router(tokens, model=MODEL) >= num_read
        await scrape_until(cluster, "scheduler", is_idle, "their blocks are free")


def _check_router(page: Scrape, seen: Seen, before: Scrape) -> None:
    """Compare with what clients saw since `before`, each outcome of which must have come about."""

    def since(name: str, **labels: str) -> float:
        try:
            earlier = before(name, **labels)
        except KeyError:
            earlier = 0.0
        return page(name, **labels) - earlier

    requests = "quire_router_requests_total"
    for outcome in ("finished", "aborted"):
        assert seen.outcomes[outcome] > 0
        assert since(requests, model=MODEL, outcome=outcome) == seen.outcomes[outcome]
    for outcome in ("failed", "cancelled"):
        assert since(requests, model=MODEL, outcome=outcome) == 0
    # Refused before its model was known, or after.
    refused = sum(since(requests, model=model, outcome="refused") for model in (MODEL, ""))
    assert refused == seen.outcomes["refused"]
    for error in (OverloadedError, InvalidRequestError, ModelNotFoundError):
        count = seen.errors[error.code, error.reason]
        assert count > 0, f"no request met {error.reason}"
        assert since("quire_router_errors_total", code=error.code, reason=error.reason) == count
    assert sum(seen.errors.values()) == seen.outcomes["refused"]
    for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT):
        assert seen.outputs[reason] > 0
        counted = since("quire_router_outputs_total", model=MODEL, finish_reason=reason.value)
        assert counted == seen.outputs[reason], reason
    for name, count in (
        ("quire_router_prompt_tokens_total", seen.prompt_tokens),
        ("quire_router_output_tokens_total", seen.output_tokens),
        ("quire_router_queue_seconds_count", seen.num_started),
        ("quire_router_time_to_first_token_seconds_count", seen.num_with_tokens),
        (
            "quire_router_inter_token_seconds_count",
            seen.num_token_messages - seen.num_with_tokens,
        ),
        ("quire_router_request_seconds_count", seen.outcomes["finished"]),
    ):
        assert since(name, model=MODEL) == count, name
    num_full = seen.errors[OverloadedError.code, OverloadedError.reason]
    submitted = since("quire_router_submissions_total", reason="new")
    assert submitted == seen.num_started + num_full
    placed = [since("quire_router_placements_total", by=by) for by in ("prefix", "load")]
    assert sum(placed) == submitted
    assert page("quire_router_open_requests") == 0
    assert page("quire_router_cells", state="up") == 1


def is_idle(page: Scrape) -> bool:
    requests = [page("quire_scheduler_requests", state=each) for each in ("waiting", "running")]
    return not any(requests) and page("quire_scheduler_steps_in_flight") == 0


def _check_cell(scheduler: Scrape, worker: Scrape, seen: Seen) -> None:
    """Compare scheduler and worker with clients, and with each other."""
    admitted = scheduler("quire_scheduler_requests_admitted_total")
    assert admitted == seen.num_started + 1  # the one before
    num_full = seen.errors[OverloadedError.code, OverloadedError.reason]
    refused = scheduler("quire_scheduler_requests_refused_total", reason="QUEUE_FULL")
    assert refused == num_full
    assert scheduler("quire_scheduler_sampled_tokens_total") >= seen.output_tokens
    assert scheduler("quire_scheduler_kv_blocks", memory="device", state="used") == 0
    assert scheduler("quire_scheduler_worker_up", rank="0") == 1
    assert scheduler("quire_scheduler_sessions") == 1
    steps = scheduler("quire_scheduler_steps_total")
    for name in ("seconds", "tokens", "sequences"):
        assert scheduler(f"quire_scheduler_step_{name}_count") == steps
    assert worker("quire_worker_step_seconds_count") == steps
    computed = worker("quire_worker_computed_tokens_total")
    assert computed == scheduler("quire_scheduler_step_tokens_sum")
    for phase in ("model", "sample"):
        on_worker = worker("quire_worker_phase_seconds_total", phase=phase)
        assert on_worker == scheduler("quire_scheduler_phase_seconds_total", phase=phase)
    assert worker("quire_worker_epoch") == scheduler("quire_scheduler_epoch")
    assert worker("quire_worker_kv_blocks") == sum(
        scheduler("quire_scheduler_kv_blocks", memory="device", state=state)
        for state in ("used", "cached", "free")
    )


async def _check_aliases(cluster: Cluster, router: Scrape, scheduler: Scrape) -> None:
    """VLLM's names are those documented, with the same numbers."""
    documented = documented_aliases()
    pages = {}
    for service in ("router", "scheduler", "worker 0"):
        page = pages[service] = await scrape(cluster, service, "/metrics/vllm")
        assert set(page.names) == {name for name, where in documented.items() if where == service}
    labels = {"model_name": MODEL}
    for alias, name in (
        ("generation_tokens_total", "quire_router_output_tokens_total"),
        ("prompt_tokens_total", "quire_router_prompt_tokens_total"),
        ("e2e_request_latency_seconds_count", "quire_router_request_seconds_count"),
        ("time_to_first_token_seconds_sum", "quire_router_time_to_first_token_seconds_sum"),
    ):
        assert pages["router"](f"vllm:{alias}", **labels) == router(name, model=MODEL)
    finished = pages["router"]("vllm:request_success_total", finished_reason="length", **labels)
    assert finished == router("quire_router_outputs_total", model=MODEL, finish_reason="length")
    for alias, name in (
        ("prefix_cache_hits_total", "quire_scheduler_prefix_cache_hits_total"),
        ("iteration_tokens_total_sum", "quire_scheduler_step_tokens_sum"),
    ):
        assert pages["scheduler"](f"vllm:{alias}", **labels) == scheduler(name)
    assert pages["scheduler"]("vllm:kv_cache_usage_perc", **labels) == 0
