"""Reading the admin ports of a cluster."""

import asyncio
from collections.abc import Callable

import pytest

from launch.cluster.supervisor import Cluster
from tests.scraping import Scrape, get

MODEL = "demo_model"
PROMPT = list(range(3, 43))


async def scrape(cluster: Cluster, service: str, path: str = "/metrics") -> Scrape:
    addresses = {each.name: each.admin_address for each in cluster.services}
    status, text = await asyncio.to_thread(get, addresses[service], path)
    assert status == 200
    return Scrape(text)


async def scrape_until(
    cluster: Cluster, service: str, holds: Callable[[Scrape], bool], what: str
) -> Scrape:
    deadline = asyncio.get_running_loop().time() + 60
    while not holds(seen := await scrape(cluster, service)):
        if asyncio.get_running_loop().time() > deadline:
            pytest.fail(f"{what}: never\n{seen.text}")
        await asyncio.sleep(0.05)
    return seen
