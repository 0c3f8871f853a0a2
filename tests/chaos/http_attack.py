"""Scenario `http-hostile`: bad requests at the HTTP port, each answered as it must be.

That is a status of 4xx and an error in the shape of its API, never 5xx and never nothing; the
processes stay, as does their memory, and streams beside all that get their tokens.
"""

import argparse
import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.cluster import ChaosCluster
from tests.chaos.hostile_frames import JSON, ROUTE, request_bytes
from tests.chaos.hostile_http import HostileRequests, Request
from tests.chaos.http_wire import Answer, HangError, Wire, send_raw
from tests.chaos.load import load, references
from tests.chaos.soak import resident_mib
from tests.chaos.verdict import judge
from tests.scraping import Scrape, get

NUM_REQUESTS = 100_000
NUM_PARTS = 10
AT_ONCE = 16
# Of the least that the router has, in the second half.
MAX_GROWTH_MIB = 16.0
_POLL_S = 0.1
# Connections of each kind that send a byte now and then.
_NUM_SLOW = 4
_NUM_SLOW_BYTES = 60
_SLOW_PAUSE_S = 1.0


def _openai_field(content: Any) -> str | None:
    """Return the field that an error in OpenAI's shape names, "" for none; None for another."""
    match content:
        case {"error": {"message": str(), "type": str(), "param": None | str(), "code": str()}}:
            if len(content) == 1 and len(content["error"]) == 4:
                return content["error"]["param"] or ""
    return None


def _anthropic_field(content: Any) -> str | None:
    """Return as `_openai_field` of Anthropic's shape, whose message begins with the field."""
    match content:
        case {"type": "error", "error": {"type": str(), "message": str()}, "request_id": _}:
            if len(content) == 3 and len(content["error"]) == 2:
                name, separator, _ = content["error"]["message"].partition(": ")
                return name if separator else ""
    return None


# By the beginning of a route: which field an error names, None for what has another shape.
ERROR_SHAPES: dict[str, Callable[[Any], str | None]] = {
    "": _openai_field,
    "/v1/messages": _anthropic_field,
}


def field_of(route: str, answer: Answer) -> str | None:
    """Return the field that an error names, as the clients of its route look for it.

    Returns:
        "" where it names none; None where the answer is no such error.
    """
    begins = max((each for each in ERROR_SHAPES if route.startswith(each)), key=len)
    if answer.headers.get("content-type") != "application/json":
        return None
    try:
        return ERROR_SHAPES[begins](json.loads(answer.body))
    except ValueError:
        return None


def why_wrong(request: Request, answer: Answer | None) -> str:
    """Return what is wrong with an answer; "" if it is right."""
    if answer is None:
        return "no answer"
    if answer.status >= 500:
        return f"a status of {answer.status}"
    if answer.status < 400:
        return "" if not request.is_wrong and answer.status < 300 else f"taken: {answer.status}"
    if request.method == "HEAD":
        return ""
    named = field_of(request.route, answer)
    if named is None:
        return f"another shape: {answer.body[:200]!r}"
    if request.param and (answer.status != 400 or not _is_within(named, request.param)):
        return f"must be 400 that names {request.param}: {answer.status}, {answer.body[:200]!r}"
    return ""


def _is_within(one: str, other: str) -> bool:
    """Return whether one field is the other, or one holds the other."""
    return bool(one) and (one.startswith(other) or other.startswith(one))


@dataclass(slots=True)
class HttpAttack:
    """Sends bad requests to an HTTP port.

    Attributes:
        address: of it.
        counts: of answers so far, by what was wrong and the status.
        wrong: those that must not be, with what was sent.
    """

    address: str
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def run(self, seed: int, number: int) -> None:
        """Send so many, some at once, over connections that are kept."""
        todo = itertools.islice(HostileRequests(seed), number)
        await asyncio.gather(*(self._work(todo) for _ in range(AT_ONCE)))

    async def _work(self, todo: Iterator[Request]) -> None:
        wire = Wire(self.address)
        for request in todo:
            has_body = request.method != "HEAD"
            try:
                if request.num_answers is None:
                    self._judge(request, [await wire.ask(request.content, has_body)])
                else:
                    num, content = request.num_answers, request.content
                    self._judge(request, await send_raw(self.address, content, num, has_body))
            except HangError as error:
                self._note(request, None, str(error))
        await wire.close()

    async def be_slow(self) -> None:
        """Send requests a byte at a time until the server has had enough of each."""
        body = b'{"prompt": "a"}'.ljust(_NUM_SLOW_BYTES)
        content = request_bytes("POST", ROUTE, JSON, body)
        head = content.removesuffix(body)
        await asyncio.gather(
            *(self._be_slow(content, b"", num_answers=0) for _ in range(_NUM_SLOW)),
            *(self._be_slow(body, head, num_answers=1) for _ in range(_NUM_SLOW)),
        )

    async def _be_slow(self, content: bytes, first: bytes, num_answers: int) -> None:
        request = Request("slow", first + content, ROUTE, num_answers=num_answers)
        try:
            pause_s = _SLOW_PAUSE_S
            self._judge(request, await send_raw(self.address, content, 0, True, pause_s, first))
        except HangError as error:
            self._note(request, None, str(error))

    def _judge(self, request: Request, answers: Sequence[Answer | None]) -> None:
        """Note the answers to a request, and that there are as many as it is due."""
        for answer in answers:
            self._note(request, answer, why_wrong(request, answer))
        num_missing = (request.num_answers or 0) - len(answers)
        if num_missing > 0:
            self._note(request, None, f"{num_missing} answers are missing")
        elif not answers:
            self._note(request, None, "")  # closed, as what is no request may be

    def _note(self, request: Request, answer: Answer | None, why: str) -> None:
        self.counts[request.kind, "closed" if answer is None else str(answer.status)] += 1
        if why:
            sent = request.content
            self.wrong.append(f"  {request.kind}: {why}; sent {sent[:300]!r} ... {sent[-200:]!r}")

    def lines(self) -> list[str]:
        """Return the lines of the report."""
        lines = ["| what was wrong | answers | by status |", "|---|---|---|"]
        for kind in sorted({kind for kind, _ in self.counts}):
            own = {status: n for (each, status), n in self.counts.items() if each == kind}
            by = ", ".join(f"{status} {number:,}" for status, number in sorted(own.items()))
            lines.append(f"| {kind} | {sum(own.values()):,} | {by} |")
        return [*lines, f"{len(self.wrong)} answered wrongly", *self.wrong[:10]]


async def until_idle(admin_address: str) -> None:
    """Return when a router has no open request, and no connection."""
    while True:
        page = Scrape((await asyncio.to_thread(get, admin_address, "/metrics"))[1])
        names = ("open_requests", "http_open_requests", "http_connections")
        if not any(page(f"quire_router_{name}") for name in names):
            return
        await asyncio.sleep(_POLL_S)


async def insult_http(arguments: argparse.Namespace) -> int:
    """Run the scenario; return the number of wrong answers, wrong streams and deaths."""
    cluster = ChaosCluster(1, 1, 1, router_options={"http_port": 0})
    number = arguments.requests or NUM_REQUESTS
    try:
        await cluster.start()
        [router], before = cluster.routers, cluster.victims()
        expected, alone_s = await references(cluster.targets, AT_ONCE)
        over = asyncio.Event()
        company = asyncio.create_task(
            load(cluster.targets, arguments.seed, arguments.streams // 3, over)
        )
        attack = HttpAttack(router.service.http_address)
        memory_mib = []
        slow = asyncio.create_task(attack.be_slow())
        for part in range(NUM_PARTS):
            await attack.run(NUM_PARTS * arguments.seed + part, -(-number // NUM_PARTS))
            memory_mib.append(resident_mib(router.service.pid))
            print(f"{part + 1}/{NUM_PARTS}: {memory_mib[-1]:.1f} MiB", flush=True)
        await slow
        over.set()
        streams = await company
        await until_idle(router.service.admin_address)
        deaths = len(set(before) - set(cluster.victims()))
    finally:
        await cluster.stop()
    # What large bodies take goes back, some time later. In the first part the router warms up.
    half = NUM_PARTS // 2
    before_mib = min(memory_mib[1:half])
    growth_mib = min(memory_mib[half:]) - before_mib
    print("\n".join(attack.lines()))
    print(
        f"{deaths} deaths; the router had at least {before_mib:.1f} MiB in the first "
        f"half, {min(memory_mib[half:]):.1f} in the second, at most {max(memory_mib):.1f}"
    )
    print("beside them:")
    verdict = judge(streams, expected, alone_s, [])
    print("\n".join(verdict.lines[:2]))
    return len(attack.wrong) + verdict.num_wrong + deaths + (growth_mib > MAX_GROWTH_MIB)
