"""Scenario `schemas`: random grammars by every API, beside streams that have none.

An answer that ends by itself must be of its grammar; those beside it are what they were alone; a
hostile grammar is refused, at a cost of processor time that is printed.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from quire import AsyncClient, SamplingParams, StructuredOutputsParams
from tests.chaos.cluster import ChaosCluster
from tests.chaos.drawn_grammars import WEIGHTS, Drawn, drawn
from tests.chaos.load import load, references
from tests.chaos.verdict import judge
from tests.hostile_grammars import HOSTILE
from tests.scraping import Scrape, get

NUM_REQUESTS = 1_000
# More than an answer of those that are drawn needs, most of the time.
MAX_TOKENS = 700
MIN_STOP_SHARE = 0.9
AT_ONCE = 16
WAYS = ("grpc", "completions", "chat", "responses")
_PROMPT = "Describe a person."
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Outcome:
    """What became of answers under grammars.

    Attributes:
        reasons: why they ended, by kind of grammar.
        num_tokens: of all.
        wrong: those that ended by themselves and are none of their grammar, and errors.
    """

    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_tokens: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def stop_share(self) -> float:
        """Share of the answers that ended by themselves."""
        stopped = sum(number for (_, reason), number in self.reasons.items() if reason == "stop")
        return stopped / max(1, self.reasons.total())

    def lines(self) -> list[str]:
        """Return the lines of the report."""
        lines = ["| grammar | answers | ended by |", "|---|---|---|"]
        for kind in WEIGHTS:
            own = {reason: n for (each, reason), n in self.reasons.items() if each == kind}
            by = ", ".join(f"{reason} {number:,}" for reason, number in sorted(own.items()))
            lines.append(f"| {kind} | {sum(own.values()):,} | {by} |")
        return [
            *lines,
            f"{self.stop_share:.1%} ended by themselves; {self.num_tokens:,} tokens; "
            f"{len(self.wrong)} were wrong",
            *self.wrong[:5],
        ]


async def ask(target: str, http_address: str, seed: int, number: int) -> Outcome:
    """Ask for answers of so many random grammars, some at once, and check each.

    Args:
        target: of the gRPC API.
        http_address: of the others.
        seed: of the grammars, and of the answers.
        number: of grammars.
    """
    outcome = Outcome()
    todo = enumerate(itertools.islice(drawn(random.Random(seed)), number))
    async with (
        AsyncClient(target) as grpc,
        httpx.AsyncClient(base_url=f"http://{http_address}/v1", timeout=600.0) as http,
    ):

        async def work(waiting: Iterator[tuple[int, Drawn]]) -> None:
            for place, each in waiting:
                try:
                    text, reason, tokens = await _ask(grpc, http, each, seed, place)
                except Exception as error:
                    text, reason, tokens = f"{type(error).__name__}: {error}", "error", 0
                outcome.reasons[each.kind, reason] += 1
                outcome.num_tokens += tokens
                if reason == "error" or (reason == "stop" and not each.allows(text)):
                    outcome.wrong.append(f"  {place}, {each.kind} {each.grammar!r}: {text[:300]!r}")

        await asyncio.gather(*(work(todo) for _ in range(AT_ONCE)))
    return outcome


async def _ask(
    grpc: AsyncClient, http: httpx.AsyncClient, each: Drawn, seed: int, place: int
) -> tuple[str, str, int]:
    """Return text, finish reason and number of tokens of an answer, by one of the APIs."""
    own_seed, way = 10**6 * seed + place, WAYS[place % len(WAYS)]
    if way == "grpc":
        grammar = StructuredOutputsParams(**{each.kind: each.grammar})
        params = SamplingParams(max_tokens=MAX_TOKENS, seed=own_seed, structured_outputs=grammar)
        answer = await grpc.generate(_PROMPT, params)
        return answer.text, answer.finish_reason.shown, len(answer.token_ids)
    body: dict[str, Any] = {"seed": own_seed}
    messages = [{"role": "user", "content": _PROMPT}]
    schema = {"name": "drawn", "schema": each.grammar}
    match way, each.kind:
        case "completions", _:
            body |= {"prompt": _PROMPT, f"guided_{each.kind}": each.grammar}
        case "chat", "json":
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        case "responses", "json":
            body["text"] = {"format": {"type": "json_schema", **schema}}
        case _:
            body["structured_outputs"] = {each.kind: each.grammar}
    match way:
        case "completions":
            content = await _post(http, "/completions", {**body, "max_tokens": MAX_TOKENS})
            text = content["choices"][0]["text"]
        case "chat":
            body |= {"messages": messages, "max_tokens": MAX_TOKENS}
            content = await _post(http, "/chat/completions", body)
            text = content["choices"][0]["message"]["content"]
        case _:
            body |= {"input": messages, "max_output_tokens": MAX_TOKENS}
            content = await _post(http, "/responses", body)
            text = content["output"][0]["content"][0]["text"]
            reason = "stop" if content["status"] == "completed" else "length"
            return text, reason, content["usage"]["output_tokens"]
    return text, content["choices"][0]["finish_reason"], content["usage"]["completion_tokens"]


async def _post(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(path, json=body)
    if response.is_error:
        raise RuntimeError(f"{response.status_code}: {response.text[:300]}")
    content: dict[str, Any] = response.json()
    return content


def processor_s(pid: int) -> float:
    """Return the processor time of a process and all children that it had or has (Linux)."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S + sum(map(processor_s, children))


async def refuse(http_address: str, router_pid: int) -> tuple[list[str], int]:
    """Send hostile grammars one by one; return a report, and how many were answered wrongly."""
    lines = ["| hostile grammar | answer | processor time of the router, s |", "|---|---|---|"]
    num_wrong = 0
    async with httpx.AsyncClient(base_url=f"http://{http_address}/v1", timeout=600.0) as http:
        for name, (grammar, reason) in HOSTILE.items():
            before = processor_s(router_pid)
            body = {"prompt": _PROMPT, "max_tokens": 1, "structured_outputs": grammar}
            response = await http.post("/completions", json=body)
            spent = processor_s(router_pid) - before
            message = json.loads(response.text).get("error", {}).get("message", "")
            is_right = response.status_code == 400 and reason in message
            if not reason:
                is_right = response.status_code in (200, 400)
            num_wrong += not is_right
            lines.append(f"| {name} | {response.status_code} | {spent:.2f} |")
    return lines, num_wrong


def mask_lines(before: Scrape, after: Scrape) -> list[str]:
    """Return what masks cost between two looks at the metrics of a worker."""

    def spent(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    masks = spent("quire_worker_grammar_masks_total")
    fill_s = spent("quire_worker_grammar_seconds_total", phase="fill")
    wait_s = spent("quire_worker_grammar_seconds_total", phase="wait")
    steps, step_s = spent("quire_worker_step_seconds_count"), spent("quire_worker_step_seconds_sum")
    return [
        f"{masks:,.0f} masks; to fill one took {1e6 * fill_s / max(1.0, masks):.0f} us beside the "
        "model",
        f"{steps:,.0f} steps of {1e3 * step_s / steps:.2f} ms; masks added "
        f"{1e6 * wait_s / steps:.0f} us to one ({wait_s / step_s:.1%})",
    ]


async def _scrape(address: str) -> Scrape:
    return Scrape((await asyncio.to_thread(get, address, "/metrics"))[1])


async def obey(arguments: argparse.Namespace) -> int:
    """Run the scenario; return how much went wrong."""
    cluster = ChaosCluster(1, 1, 1, router_options={"http_port": 0})
    try:
        await cluster.start()
        [router], [[worker]] = cluster.routers, cluster.workers
        expected, alone_s = await references(cluster.targets, AT_ONCE)
        over = asyncio.Event()
        company = asyncio.create_task(
            load(cluster.targets, arguments.seed, arguments.streams // 3, over)
        )
        before, began_s = await _scrape(worker.service.admin_address), time.monotonic()
        http_address = router.service.http_address
        number = arguments.requests or NUM_REQUESTS
        outcome = await ask(router.address, http_address, arguments.seed, number)
        seconds, after = time.monotonic() - began_s, await _scrape(worker.service.admin_address)
        over.set()
        streams = await company
        refused, num_refused_wrong = await refuse(http_address, router.service.pid)
    finally:
        await cluster.stop()
    verdict = judge(streams, expected, alone_s, [])
    print("\n".join([*outcome.lines(), f"{seconds:.0f} s", *mask_lines(before, after), ""]))
    print("\n".join([*refused, "", "beside them:", *verdict.lines[:2]]))
    too_few = outcome.stop_share < MIN_STOP_SHARE
    return len(outcome.wrong) + num_refused_wrong + verdict.num_wrong + too_few
