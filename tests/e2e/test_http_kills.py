"""Streams over HTTP whose router is killed: every kind of client goes on, and gets the same."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from examples.resuming_openai_client import resuming
from launch.cluster.supervisor import Cluster
from tests import depth
from tests.chaos import http_kills
from tests.chaos.http_jobs import JOBS, Way
from tests.e2e.conftest import SharedClusters

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "resuming_openai_client.py"
# With it the first ten streams have every kind of client, and some of them cut their connection.
SEED = 88
NUM_KILLS = depth.budget("kills of a router under streams over HTTP", test=2, deep=6)


@pytest.fixture
def cluster(shared_clusters: SharedClusters) -> Cluster:
    return shared_clusters.get(port=0, reasoning_parser="qwen3")


@pytest.mark.budget
async def test_every_client_gets_what_an_undisturbed_one_gets(cluster: Cluster) -> None:
    """A short `make chaos SCENARIO=http`."""
    base_url = f"http://{cluster.router.http_address}/v1"
    load = http_kills.Load(base_url, 10, [job for job in JOBS if job.prompt == 0])
    lines, num_wrong = await http_kills.run(
        load, SEED, NUM_KILLS, lambda: os.kill(cluster.router.pid, signal.SIGKILL), steady_s=0.0
    )
    load.close()
    assert num_wrong == 0, "\n".join(lines)
    breaks = [each for stream in load.streams for each in stream.breaks]
    assert sum(each.is_kill for each in breaks) >= NUM_KILLS, "\n".join(lines)
    assert any(not each.is_kill for each in breaks), "\n".join(lines)
    assert {stream.job.way for stream in load.streams} == set(Way)


async def test_the_example_survives_its_router(cluster: Cluster) -> None:
    base_url = f"http://{cluster.router.http_address}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        whole = await client.completions.create(
            model="", prompt="The list class", max_tokens=400, seed=3
        )
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, str(EXAMPLE), "The list class", "--base-url", base_url],
        *["--max-tokens", "400", "--seed", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    begun = await process.stdout.read(8)
    os.kill(cluster.router.pid, signal.SIGKILL)
    rest, errors = await asyncio.gather(process.stdout.read(), process.stderr.read())
    assert await process.wait() == 0, errors.decode()
    assert (begun + rest).decode() == whole.choices[0].text + "\n"


def test_the_documentation_shows_the_example() -> None:
    _, _, lines = inspect.getsource(resuming).rpartition('"""\n')
    assert lines.count("\n") > 10
    assert lines in (ROOT / "docs" / "http-api.md").read_text()
