"""Scenario `calm`: nothing is disturbed on a machine that is too busy; nothing may seem lost."""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.cluster import ChaosCluster
from tests.chaos.load import load, references
from tests.chaos.verdict import judge
from tests.scraping import Scrape, get

# With the cluster, which would take all cores by itself, twice as many want to run as may.
_SPIN = "while True: pass"
_REPORT_S = 60.0


@contextmanager
def busy_cores() -> Iterator[int]:
    """Have a process run on each core without a pause; yield how many they are."""
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in os.sched_getaffinity(0)]
    try:
        yield len(spinning)
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def alarms(cluster: ChaosCluster) -> dict[str, int]:
    """Return how often the services of a cluster took another for lost, by what they count."""
    pages = {
        each: Scrape(get(each.service.admin_address, "/metrics")[1])
        for each in (*cluster.schedulers, *cluster.routers)
    }
    formed = [
        int(pages[each]("quire_scheduler_group_formations_total")) for each in cluster.schedulers
    ]
    submitted = "quire_router_submissions_total"
    return {
        "formations of workers anew": sum(formed) - len(formed),
        "requests moved to other cells": sum(
            int(pages[each](submitted, reason="moved")) for each in cluster.routers
        ),
        "streams resumed by clients": sum(
            int(pages[each](submitted, reason="resumed")) for each in cluster.routers
        ),
    }


async def stay_calm(arguments: argparse.Namespace) -> int:
    """Run scenario `calm`; return the number of false alarms and wrong streams."""
    cluster = ChaosCluster(2, 2, 2)
    try:
        await cluster.start()
        expected, alone_s = await references(cluster.targets, arguments.streams)
        before = cluster.victims()
        over, began = asyncio.Event(), time.monotonic()
        with busy_cores() as number:
            running = asyncio.create_task(
                load(cluster.targets, arguments.seed, arguments.streams, over)
            )
            while (passed_s := time.monotonic() - began) < arguments.seconds:
                await asyncio.sleep(min(_REPORT_S, arguments.seconds - passed_s))
                found = await asyncio.to_thread(alarms, cluster)
                print(f"{time.monotonic() - began:7.0f} s  {found}", flush=True)
            over.set()
            streams = await running
        found = await asyncio.to_thread(alarms, cluster)
        found["processes that ended"] = len({*before} - {*cluster.victims()})
    finally:
        await cluster.stop()
    verdict = judge(streams, expected, alone_s, [])
    print("\n".join(verdict.lines[:2]))
    named = ", ".join(f"{number} {what}" for what, number in found.items())
    print(f"{time.monotonic() - began:.0f} s beside {number} processes that never pause: {named}")
    return verdict.num_wrong + sum(found.values())
