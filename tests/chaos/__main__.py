"""Kill and freeze processes of a cluster under load, and compare every answer.

What an answer must be is seen in an undisturbed run before.

Clusters of the embedded model run on this machine: `cells` has two routers before two cells of two
ranks, each process started again when it dies; `compose` has the same in containers of
deploy/compose.yaml, which `docker kill` and `docker pause` disturb; `serve` is what `quire serve`
starts and keeps; in `everything` all processes are killed at once, and clients go on at a cluster
that starts elsewhere; `hostile` sends every gRPC port what nobody should, `http-hostile` the HTTP
port; in `http` the router of `quire serve` is killed under clients over HTTP, who go on where they
stand; `schemas` asks for answers of random grammars; `soak` gives requests up in every state,
beside clients that stop reading, and looks for what is left of them; in `moves` a cell of 64
streams is drained, in `roll` every process is replaced in turn, both with notice; in `resize` a
cell goes from one rank to two, to four and back; in `calm` nothing is done, on a machine whose
cores others want as well, and nothing may be taken for lost.
What is done follows from the seed; when exactly it strikes, from the machine.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter

from quire import AsyncClient
from tests.chaos import soak
from tests.chaos.calm import stay_calm
from tests.chaos.cluster import ChaosCluster, ServedCluster
from tests.chaos.containers import ContainerCluster
from tests.chaos.hostile import Attack
from tests.chaos.http_attack import insult_http
from tests.chaos.http_kills import kill_routers
from tests.chaos.load import load, references
from tests.chaos.paths import ResumePaths
from tests.chaos.resizing import resize
from tests.chaos.rolling import move, roll
from tests.chaos.schemas import obey
from tests.chaos.trouble import Disturbance, Trouble, plans
from tests.chaos.verdict import judge
from tests.chaos.workload import JOBS, SILENT, Stream, follow
from tools.lanes import machine

# Of streams in scenario `everything`, when the processes die.
_TOKENS_BEFORE = 12
# Of each port, in scenario `hostile`.
_ERRORS_SHOWN = 5


def _cluster(arguments: argparse.Namespace) -> ChaosCluster | ServedCluster | ContainerCluster:
    """Return that of a scenario that differs from others by nothing else."""
    match arguments.scenario:
        case "cells":
            return ChaosCluster(2, 2, 2)
        case "compose":
            return ContainerCluster()
        case _:
            return ServedCluster(arguments.ranks, model=arguments.model)


def _print(line: str) -> None:
    print(line, flush=True)


async def strike(arguments: argparse.Namespace) -> int:
    """Run scenario `cells`, `compose` or `serve`; return the number of wrong streams."""
    cluster = _cluster(arguments)
    paths = ResumePaths(cluster.pages)
    try:
        await cluster.start()
        _print(f"{len(cluster.victims())} processes; undisturbed run of {len(JOBS)} requests")
        expected, alone_s = await references(cluster.targets, arguments.streams, **cluster.access)
        mean_s = arguments.mean_s
        number = arguments.disturbances or max(1, round(arguments.seconds / mean_s))
        trouble = Trouble(cluster.victims, _print)
        over = asyncio.Event()
        running = asyncio.create_task(
            load(cluster.targets, arguments.seed, arguments.streams, over, **cluster.access)
        )
        async with paths.followed():
            await trouble.run(plans(arguments.seed, number, mean_s))
            over.set()
            streams = await running
    finally:
        await cluster.stop()
    verdict = judge(streams, expected, alone_s, trouble.done)
    print("\n".join([*verdict.lines, *paths.lines]))
    return verdict.num_wrong


async def end_everything(arguments: argparse.Namespace) -> int:
    """Run scenario `everything`; return the number of wrong streams."""
    clusters = [ChaosCluster(1, 1, 2) for _ in range(2)]
    targets = [target for each in clusters for target in each.targets]
    jobs = [job for job in JOBS if job.mode not in SILENT and job.mode != "short"]
    draw = random.Random(arguments.seed)
    streams: list[Stream] = []
    deaths: list[Disturbance] = []
    number = arguments.disturbances or max(1, round(arguments.seconds / 20))
    paths = ResumePaths(lambda: [page for each in clusters for page in each.pages()])
    try:
        await clusters[0].start()
        expected, alone_s = await references(clusters[0].targets, arguments.streams)
        async with AsyncClient(targets) as client, paths.followed():
            for turn in range(number):
                dying, coming = clusters[turn % 2], clusters[(turn + 1) % 2]
                begun = [asyncio.Event() for _ in range(arguments.streams)]
                running = [
                    asyncio.create_task(follow(client, draw.choice(jobs), each, _TOKENS_BEFORE))
                    for each in begun
                ]
                await asyncio.gather(*(each.wait() for each in begun))
                deaths.append(Disturbance("kill everything", time.monotonic()))
                await dying.kill()
                await coming.start()
                ended = await asyncio.gather(*running)
                streams += ended
                slowest = max(each.ended_at for each in ended) - deaths[-1].at
                _print(f"{turn + 1}/{number}: all streams ended {slowest:.1f} s after everything")
    finally:
        await asyncio.gather(*(each.stop() for each in clusters))
    verdict = judge(streams, expected, alone_s, deaths)
    print("\n".join([*verdict.lines, *paths.lines]))
    return verdict.num_wrong


async def insult(arguments: argparse.Namespace) -> int:
    """Run scenario `hostile`; return the number of wrong streams, wrong codes and deaths."""
    cluster = ChaosCluster(1, 1, 1)
    try:
        await cluster.start()
        before = cluster.victims()
        expected, alone_s = await references(cluster.targets, arguments.streams)
        attacks = [
            Attack(each.role, each.address, arguments.seed + number)
            for number, each in enumerate(cluster.services)
        ]
        over = asyncio.Event()
        running = asyncio.create_task(
            load(cluster.targets, arguments.seed, arguments.streams, over)
        )
        share = -(-arguments.messages // len(attacks))
        await asyncio.gather(*(each.run(share) for each in attacks))
        over.set()
        streams = await running
        deaths = len(set(before) - set(cluster.victims()))
    finally:
        await cluster.stop()
    print("| port | messages | sent | answered |", "|---|---|---|---|", sep="\n")
    for attack in attacks:
        for kind in sorted({kind for kind, _ in attack.codes}):
            answers = {code: n for (each, code), n in attack.codes.items() if each == kind}
            codes = ", ".join(f"{code} {number:,}" for code, number in sorted(answers.items()))
            print(f"| {attack.role} | {kind} | {sum(answers.values()):,} | {codes} |")
    wrong = sum(len(each.errors) for each in attacks)
    print(f"{deaths} deaths, {wrong} wrong answers")
    for attack in attacks:
        for error, number in Counter(attack.errors).most_common(_ERRORS_SHOWN):
            print(f"{attack.role}, {number} times: {error}")
    verdict = judge(streams, expected, alone_s, [])
    print("\n".join(verdict.lines))
    return verdict.num_wrong + wrong + deaths


async def linger(arguments: argparse.Namespace) -> int:
    """Run scenario `soak`; return how much went wrong."""
    requests = arguments.requests or soak.NUM_REQUESTS
    return await soak.run(requests, arguments.seed, arguments.streams, _print)


SCENARIOS = {
    "cells": strike,
    "compose": strike,
    "serve": strike,
    "everything": end_everything,
    "hostile": insult,
    "http": kill_routers,
    "http-hostile": insult_http,
    "schemas": obey,
    "soak": linger,
    "moves": move,
    "roll": roll,
    "resize": resize,
    "calm": stay_calm,
}


def main() -> int:
    """Run a scenario; return 0 if every stream ended with the undisturbed answer."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", choices=SCENARIOS, nargs="?", default="cells")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="about how long, by default 120"
    )
    parser.add_argument("--disturbances", type=int, help="do so many things instead")
    parser.add_argument(
        "--mean-s",
        type=float,
        default=5.0,
        help="between two of them, by default 5; of cells, compose, serve",
    )
    parser.add_argument("--kills", type=int, help="of scenario http: so many kills instead")
    parser.add_argument("--streams", type=int, default=24, help="at once, by default 24")
    parser.add_argument(
        "--messages", type=int, default=20_000, help="of scenario hostile, by default 20,000"
    )
    parser.add_argument(
        "--requests",
        type=int,
        help="of scenarios schemas, by default 1,000, http-hostile and soak, by default 100,000",
    )
    parser.add_argument(
        "--move-blocks",
        default="auto",
        choices=("auto", "always", "never"),
        help="of the schedulers, in scenario moves",
    )
    parser.add_argument(
        "--model", default="", help="of scenarios serve and moves, by default the embedded one"
    )
    parser.add_argument("--ranks", type=int, default=2, help="of scenario serve, by default 2")
    arguments = parser.parse_args()
    _print(f"chaos: scenario {arguments.scenario}, seed {arguments.seed}, on {machine.processor()}")
    return int(asyncio.run(SCENARIOS[arguments.scenario](arguments)) > 0)


if __name__ == "__main__":
    sys.exit(main())
