"""What a cluster reports of itself: documented metrics, lost workers, keys, certificates."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import time
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launch.cli.main import app
from quire import AsyncClient, SamplingParams, __version__
from quire.contract.errors import (
    UnauthenticatedError,
)
from tests.documented_metrics import documented_metrics
from tests.e2e.admin_ports import PROMPT, scrape, scrape_until
from tests.e2e.conftest import SharedClusters, StartCluster
from tests.e2e.test_cli import serving
from tests.scraping import Scrape, get

# Only with certificates, and only on GPUs.
NOT_HERE = {"quire_certificate_expiry_timestamp_seconds", "quire_worker_device_memory_total_bytes"}


def command(*arguments: str) -> str:
    """What a command of `quire` prints."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def _lint(page: Scrape) -> None:
    if shutil.which("promtool") is None:
        warnings.warn("promtool is not installed: a page was not linted", stacklevel=2)
        return
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page.text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_what_is_exported_is_what_is_documented(shared_clusters: SharedClusters) -> None:
    documented = documented_metrics()
    cluster = shared_clusters.get(admin_port=0)
    async with AsyncClient(cluster.router.address) as client:
        await client.generate(PROMPT, SamplingParams(max_tokens=2))
        pages = [await scrape(cluster, name) for name in ("router", "scheduler", "worker 0")]
    names: set[str] = set()
    for page in pages:
        for family, name in zip(page.families, page.names, strict=True):
            names.add(name)
            assert name in documented, f"{name} is not documented"
            assert documented[name].kind == family.type, name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            if family.samples:
                assert labels == documented[name].labels, name
        _lint(page)
    assert documented.keys() - names == NOT_HERE


async def test_a_lost_worker_is_seen_on_the_schedulers_admin_port(
    shared_clusters: SharedClusters,
) -> None:
    formations = "quire_scheduler_group_formations_total"
    cluster = shared_clusters.get(admin_port=0)
    worker, scheduler, router = cluster.services
    before = await scrape(cluster, "scheduler")
    for service in cluster.services:
        assert await asyncio.to_thread(get, service.admin_address, "/readyz") == (200, "ok\n")
    os.kill(worker.pid, signal.SIGKILL)
    await scrape_until(
        cluster,
        "scheduler",
        lambda page: page("quire_scheduler_worker_up", rank="0") == 0,
        "the scheduler has lost its worker",
    )
    ready = await asyncio.to_thread(get, scheduler.admin_address, "/readyz")
    live = await asyncio.to_thread(get, scheduler.admin_address, "/livez")
    assert (ready[0], ready[1].startswith("not serving")) == (503, True)
    # Another start of the scheduler would not help.
    assert live == (200, "ok\n")
    back = await scrape_until(
        cluster,
        "scheduler",
        lambda page: page("quire_ready") == 1,
        "the worker is back",
    )
    assert back("quire_scheduler_worker_up", rank="0") == 1
    assert back(formations) == before(formations) + 1
    # On the port of before.
    status, _ = await asyncio.to_thread(get, worker.admin_address, "/readyz")
    assert status == 200
    assert (await scrape(cluster, "router"))("quire_router_cells", state="up") == 1
    assert router.admin_address


async def test_keys_are_counted_by_name_and_certificates_by_their_end(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    keys, certificates = tmp_path / "keys.jsonl", tmp_path / "certificates"
    secrets = {}
    for name in ("alice", "bob"):
        secrets[name] = command("keys", "add", name, "--file", str(keys)).split()[-1]
    command("certs", str(certificates), "--days", "9")
    async with start_cluster(admin_port=0, api_keys=keys, tls_dir=str(certificates)) as cluster:

        async def ask(key: str, count: int) -> None:
            async with AsyncClient(
                cluster.router.address, tls_dir=str(certificates), api_key=key
            ) as client:
                for _ in range(count):
                    await client.generate(PROMPT, SamplingParams(max_tokens=3, ignore_eos=True))

        await ask(secrets["alice"], 2)
        await ask(secrets["bob"], 1)
        with pytest.raises(UnauthenticatedError):
            await ask("quire-unknown", 1)
        pages = [await scrape(cluster, name) for name in ("router", "scheduler", "worker 0")]
    router = pages[0]
    for key, count in (("alice", 2), ("bob", 1)):
        assert router("quire_router_key_requests_total", key=key) == count
        tokens = "quire_router_key_tokens_total"
        assert router(tokens, key=key, kind="prompt") == count * len(PROMPT)
        assert router(tokens, key=key, kind="output") == count * 3
    assert router("quire_router_unauthenticated_total") == 1
    for secret in secrets.values():
        assert secret not in router.text
    for page in pages:
        days_left = (page("quire_certificate_expiry_timestamp_seconds") - time.time()) / 86_400
        assert 8.9 < days_left < 9.1


def test_serve_prints_where_metrics_are() -> None:
    with serving("--admin-port", "0") as (_, ready):
        pages = re.findall(r"^  metrics +http://(\S+)(/metrics) \((.*)\)$", ready, re.M)
        assert [name for _, _, name in pages] == ["router", "scheduler", "worker 0"]
        for address, path, name in pages:
            service = name.split()[0]
            page = Scrape(get(address, path)[1])
            assert page("quire_build_info", version=__version__, service=service) == 1
