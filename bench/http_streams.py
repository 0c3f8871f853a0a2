"""`make bench-http`: what HTTP costs beside gRPC, at the router and to the first token.

The same requests over both, in turn, in one cluster of the embedded model: time to the first token
of requests that come alone, then the CPU time of the router for each token of 256 streams at once.
Streams are read by a process of their own.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from bench.peers.environments import ROOT
from bench.peers.probes import processor
from bench.processor_time import cpu_s_of
from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model
from quire.observe import log

FRONTS = ("grpc", "http")


async def ask(*arguments: object) -> Any:
    """Run the client in another process and return what it measured."""
    client = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "bench.http_streams_client", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    output, _ = await client.communicate()
    if client.returncode:
        raise RuntimeError(f"the client ended with status {client.returncode}")
    return json.loads(output)


async def cpu_us(cluster: Cluster, front: str, streams: int, tokens: int) -> tuple[float, float]:
    """Return the router's CPU time for each token after the first, in us, and tokens a message."""
    router = cluster.router
    address = router.address if front == "grpc" else router.http_address
    spent, messages = [], []
    for length in (1, tokens):
        before = cpu_s_of(router.pid)
        measured = await ask("streams", front, address, streams, length)
        spent.append(cpu_s_of(router.pid) - before)
        messages.append(measured["num_messages"])
    num_tokens = streams * (tokens - 1)
    return 1e6 * (spent[1] - spent[0]) / num_tokens, num_tokens / (messages[1] - messages[0])


async def measure(arguments: argparse.Namespace) -> list[str]:
    """Return the lines of the report."""
    cluster = Cluster(ClusterConfig(model=embedded_model(), port=0, grpc_port=0, device="cpu"))
    await cluster.start()
    try:
        addresses = cluster.router.address, cluster.router.http_address
        pid = cluster.router.pid
        await ask("first", *addresses, pid, 50)  # imports, caches
        first = await ask("first", *addresses, pid, arguments.requests)
        rounds: list[dict[str, tuple[float, float]]] = []
        for number in range(arguments.rounds + 1):
            # Each goes first in turn; the first round warms up.
            order = FRONTS if number % 2 else FRONTS[::-1]
            found = {
                front: await cpu_us(cluster, front, arguments.streams, arguments.tokens)
                for front in order
            }
            if number:
                rounds.append(found)
                print(f"{number}/{arguments.rounds}: {found}", file=sys.stderr)
    finally:
        await cluster.stop()
    return report(first, rounds, arguments)


def report(
    first: dict[str, list[tuple[float, float]]],
    rounds: Sequence[dict[str, tuple[float, float]]],
    arguments: argparse.Namespace,
) -> list[str]:
    """Return the lines that are printed."""
    ms = {front: [each[0] for each in first[front]] for front in FRONTS}
    cpu_ms = {front: [each[1] for each in first[front]] for front in FRONTS}
    added = [http - grpc for grpc, http in zip(ms["grpc"], ms["http"], strict=True)]
    median = statistics.median

    def row(name: str, values: Sequence[float], digits: int) -> str:
        ordered = sorted(values)
        low, high = (ordered[int(share * (len(ordered) - 1))] for share in (0.1, 0.9))
        return f"| {name} | {median(values):.{digits}f} | {low:.{digits}f} to {high:.{digits}f} |"

    us = {front: [found[front][0] for found in rounds] for front in FRONTS}
    ratios = [http / grpc for grpc, http in zip(us["grpc"], us["http"], strict=True)]
    lines = [
        f"{processor()}; {arguments.requests} requests alone, {arguments.rounds} rounds of "
        f"{arguments.streams} streams of {arguments.tokens} tokens, gRPC and HTTP in turn",
        "",
        "| | median | 10 % to 90 % |",
        "|---|---|---|",
        row("ms to the first token, gRPC", ms["grpc"], 2),
        row("ms to the first token, HTTP", ms["http"], 2),
        row("ms that HTTP added to the request before it over gRPC", added, 2),
        row("ms of the router's CPU for such a request, gRPC", cpu_ms["grpc"], 2),
        row("ms of the router's CPU for such a request, HTTP", cpu_ms["http"], 2),
        row("us of the router's CPU a token, gRPC", us["grpc"], 0),
        row("us of the router's CPU a token, HTTP", us["http"], 0),
        row("HTTP over gRPC, of each round", ratios, 2),
    ]
    for front in FRONTS:
        merged = median([found[front][1] for found in rounds])
        lines.append(f"| tokens a message, {front} | {merged:.2f} | |")
    return lines


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=500, help="alone, by default 500")
    parser.add_argument("--rounds", type=int, default=7, help="of streams, by default 7")
    parser.add_argument("--streams", type=int, default=256, help="at once, by default 256")
    parser.add_argument("--tokens", type=int, default=48, help="of each, by default 48")
    arguments = parser.parse_args()
    log.configure("bench", "warning")
    print("\n".join(asyncio.run(measure(arguments))))


if __name__ == "__main__":
    main()
