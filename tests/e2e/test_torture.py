"""`quire torture` against a real cluster: nothing changes, whatever is killed."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import running_cluster


async def test_a_cluster_passes_with_its_worker_router_and_scheduler_killed(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    # So few blocks that long requests are preempted.
    async with running_cluster(port=0, kv_cache_gib=0.004) as cluster:
        worker, scheduler, router = (service.pid for service in cluster.services)
        options = (f"http://{cluster.router.http_address}", "--questions", "12", "--seed", "5")
        kills = (f"--kill={worker}", f"--kill={router}", f"--kill={scheduler}")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "launch.cli.main", "torture", *options, *kills),
            *("--pressure-tokens", "8000", "--json", str(path)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b""), out.decode() + err.decode()
        assert {worker, scheduler, router}.isdisjoint(each.pid for each in cluster.services)
    figures = json.loads(path.read_text())
    assert all(figures["extras"].values()), figures["extras"]
    scenarios = figures["scenarios"]
    for name, scenario in scenarios.items():
        assert scenario["equal"] == scenario["asked"] >= 12, name
        assert scenario["logprobs_compared"] > 100, name
        assert scenario["logprobs_differing"] == 0, name
    notes = "\n".join(scenarios["kill"]["notes"])
    for pid in (worker, router, scheduler):
        assert f"streams ran when {pid} was killed" in notes
    assert "some waited for others' end" in scenarios["pressure"]["notes"][0]
