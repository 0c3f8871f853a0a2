"""Routers are killed in mid-stream: clients go on elsewhere, with the very same answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bench.cell_processes import Cells
from quire import AsyncClient, Client, SamplingParams, StructuredOutputsParams
from quire.contract.outputs import Completion, Delta, Event
from quire.contract.sampling_params import FILLED_IN
from quire.sdk.collect import Collector
from tests.scraping import Scrape, get

NUM_TOKENS = 300
SAMPLED = SamplingParams(seed=5, max_tokens=NUM_TOKENS, ignore_eos=True)
PARAMS = {
    "greedy": replace(SAMPLED, temperature=0.0),
    "seeds": replace(SAMPLED, temperature=0.7, seed=2**64 - 1),
    "truncated": replace(SAMPLED, top_p=0.9, top_k=40, min_p=0.01),
    "penalties": replace(
        SAMPLED, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2, logprobs=2
    ),
    "n": replace(SAMPLED, n=3, logprobs=0),
    "stop": replace(SAMPLED, n=3, stop=("class", "__init__", "the next thing")),
    "stop in output": replace(
        SAMPLED, stop=("return",), include_stop_str_in_output=True, min_tokens=60
    ),
    "prompt logprobs": replace(SAMPLED, prompt_logprobs=1, logprobs=1),
    "bad words": replace(SAMPLED, bad_words=("the", "is", "self")),
    "biased": replace(SAMPLED, logit_bias={13: -100.0, 20: 1.5}),
    "special tokens": replace(SAMPLED, skip_special_tokens=False, stop_token_ids=(11,), n=2),
    "eos": replace(SAMPLED, ignore_eos=False, min_tokens=100),
    "grammar": replace(
        SAMPLED,
        ignore_eos=False,
        structured_outputs=StructuredOutputsParams(regex="([a-z]{2,9} ){60}"),
    ),
    "best of": replace(SAMPLED, n=2, best_of=3, logprobs=1),
    "beams": replace(SAMPLED, n=2, best_of=3, use_beam_search=True, temperature=0.0),
}
# The others send nothing before their end.
STREAMING = [mode for mode in PARAMS if mode not in ("best of", "beams")]
PROMPT = "Return a copy of the"


class Arrivals:
    """Counts the tokens of each stream and waits for them."""

    def __init__(self) -> None:
        self._tokens = dict.fromkeys(PARAMS, 0)
        self._ended: set[str] = set()
        self._changed = asyncio.Condition()

    async def add(self, mode: str, event: Event) -> None:
        if isinstance(event, Delta):
            self._tokens[mode] += len(event.token_ids)
            await self._notify()

    async def end(self, mode: str) -> None:
        self._ended.add(mode)
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, num_tokens: int) -> None:
        """Return when each stream has so many tokens, or has ended."""

        def have_arrived() -> bool:
            return all(
                self._tokens[mode] >= num_tokens or mode in self._ended for mode in STREAMING
            )

        async with self._changed:
            await self._changed.wait_for(have_arrived)


async def collect(client: AsyncClient, mode: str, arrivals: Arrivals) -> list[Completion]:
    collector = Collector()
    async for event in client.stream(PROMPT, PARAMS[mode]):
        collector.add(event)
        await arrivals.add(mode, event)
    await arrivals.end(mode)
    return comparable(collector.completions())


def comparable(completions: Sequence[Completion]) -> list[Completion]:
    return [replace(each, request_id="") for each in completions]


async def num_resumed(admin_address: str) -> float:
    page = Scrape((await asyncio.to_thread(get, admin_address, "/metrics"))[1])
    return page("quire_router_submissions_total", reason="resumed")


async def until_most_resumed(admin_address: str) -> None:
    """Return when a router goes on with half of the streams, long before these end."""
    while await num_resumed(admin_address) < len(STREAMING) / 2:
        await asyncio.sleep(0.01)


async def test_killed_routers_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two is killed, then the second; another cluster finishes what is left."""
    monkeypatch.setattr("random.randrange", lambda stop: 0)
    async with Cells({"kv_cache_gib": 0.03125}, {"num_threads": 1}) as cells:
        cell, elsewhere = await cells.start_cells(2)
        start = partial(cells.start_router_process, admin_port=0)
        first, second, third = await asyncio.gather(
            start([cell.address]), start([cell.address]), start([elsewhere.address])
        )
        async with AsyncClient(third.address) as client:
            undisturbed = {mode: await collect(client, mode, Arrivals()) for mode in PARAMS}
        assert any(output.stop_str for output in undisturbed["stop"]), "no stop string came up"
        targets = f"{first.address},{second.address},{third.address}"
        async with AsyncClient(targets) as client:
            arrivals = Arrivals()
            streams = {
                mode: asyncio.create_task(collect(client, mode, arrivals)) for mode in PARAMS
            }
            await arrivals.until(20)
            first.kill()
            await asyncio.wait_for(until_most_resumed(second.admin_address), 60)
            second.kill()
            for mode, stream in streams.items():
                assert await stream == undisturbed[mode], mode
        assert await num_resumed(third.admin_address) >= len(STREAMING) / 2

        with Client(targets) as sync_client:
            # The first two are dead: what has not begun is sent to the third.
            text = await asyncio.to_thread(sync_client.generate, PROMPT, PARAMS["greedy"])
            assert comparable([text]) == undisturbed["greedy"]
            tokens = await asyncio.to_thread(sync_client.tokenize, PROMPT)
            assert len(tokens) == text.num_prompt_tokens


async def test_routers_of_other_defaults_go_on_with_those_of_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fills in by its own generation_config.json; a stream keeps what it has begun with."""
    monkeypatch.setattr("random.randrange", lambda stop: 0)
    configs = {
        "first": {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.3},
        "second": {"temperature": 0.2, "top_p": 0.5},
    }
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "generation_config.json").write_text(json.dumps(config))
    params = replace(SAMPLED, left_open=frozenset(FILLED_IN) - {"max_tokens"})

    async def begin(client: AsyncClient) -> tuple[Collector, AsyncIterator[Event]]:
        """Return a stream of which 20 tokens have come."""
        collector, events = Collector(), client.stream(PROMPT, params)
        num_tokens = 0
        async for event in events:
            collector.add(event)
            num_tokens += len(event.token_ids) if isinstance(event, Delta) else 0
            if num_tokens >= 20:
                return collector, events
        pytest.fail("the stream has ended")

    async def finish(collector: Collector, events: AsyncIterator[Event]) -> list[Completion]:
        async for event in events:
            collector.add(event)
        return comparable(collector.completions())

    async with Cells({"kv_cache_gib": 0.03125}, {"num_threads": 1}) as cells:
        (cell,) = await cells.start_cells(1)
        first, second = [
            await cells.start_router_process(
                [cell.address], admin_port=0, generation_config=str(tmp_path / name)
            )
            for name in configs
        ]
        async with AsyncClient(first.address) as client:
            undisturbed = await finish(*await begin(client))
        async with AsyncClient(second.address) as client:
            assert await finish(*await begin(client)) != undisturbed
        async with AsyncClient(f"{first.address},{second.address}") as client:
            begun = await begin(client)
            first.kill()
            answer = await finish(*begun)
        assert await num_resumed(second.admin_address) == 1
        assert answer == undisturbed
