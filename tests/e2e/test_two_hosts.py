"""A model split over two hosts gives the tokens of one process, also after the cable was out."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from launch.authority import CertificateDirectory
from launch.cluster.supervisor import embedded_model
from quire import AsyncClient, SamplingParams
from tests.e2e.conftest import StartCluster
from tests.e2e.test_cli import QUIRE
from tests.e2e.two_hosts import Host, two_hosts, why_not
from worker_svc.parallel.gloo_tls import gloo_tls_fault

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

PROMPT = "Return a copy of the string"
SETTINGS = {"temperature": 0.0, "max_tokens": 48, "ignore_eos": True, "logprobs": 0}
# What a client of any language would see: the SDK, in the namespace of the router. It asks again
# until the cluster answers.
CLIENT = f"""
import asyncio, json, sys
from quire import AsyncClient, SamplingParams
from quire.contract.errors import QuireError
async def main():
    target, tls_dir = sys.argv[1], sys.argv[2] or None
    async with asyncio.timeout(90), AsyncClient(target, tls_dir=tls_dir) as client:
        while True:
            try:
                output = await client.generate({PROMPT!r}, SamplingParams(**{SETTINGS}))
                break
            except QuireError:
                await asyncio.sleep(0.1)
        print(json.dumps([output.token_ids, output.cumulative_logprob]))
asyncio.run(main())
"""


@contextmanager
def running(host: Host, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(host.command(*QUIRE, *arguments, "--log-level", "error"))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(host: Host, tls_dir: str = "") -> list[object]:
    """Return tokens and log-probability, once the cluster answers."""
    asked = subprocess.run(
        host.command(sys.executable, "-c", CLIENT, f"{host.address}:50051", tls_dir),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert asked.returncode == 0, asked.stderr
    answer: list[object] = json.loads(asked.stdout)
    return answer


async def test_two_hosts_give_the_bits_of_one_process(start_cluster: StartCluster) -> None:
    """bf16, where a sum in another order would soon change a token."""
    async with (
        start_cluster(invariant=True) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        alone = await client.generate(PROMPT, SamplingParams(**SETTINGS))
    expected = [list(alone.token_ids), alone.cumulative_logprob]

    with two_hosts() as (here, there), ExitStack() as services:
        model = str(embedded_model())
        workers = [
            services.enter_context(
                running(host, "worker", "--host", host.address, "--insecure", "--port", "50053")
            )
            for host in (here, there)
        ]
        named = [part for host in (here, there) for part in ("--worker", f"{host.address}:50053")]
        local = ["--host", here.address, "--insecure"]
        services.enter_context(
            running(
                *(here, "scheduler", model, *named, *local, "--port", "50052", "--invariant"),
                *("--kv-cache-gib", "0.03", "--distributed-timeout-s", "5"),
            )
        )
        services.enter_context(
            running(
                *(here, "router", model, "--scheduler", f"{here.address}:50052"),
                *(*local, "--port", "50051"),
            )
        )
        assert ask(here) == expected
        for host in (here, there):
            assert host.listening_addresses() <= host.address_in_hexadecimal()

        there.set_link("down")
        workers[1].kill()
        there.set_link("up")
        services.enter_context(
            running(there, "worker", "--host", there.address, "--insecure", "--port", "50053")
        )
        assert ask(here) == expected


async def test_what_ranks_exchange_is_encrypted_or_refused(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    """With certificates and without --insecure: which of both it is, torch decides."""
    fault = gloo_tls_fault()
    print(f"TLS of Gloo in torch {torch.__version__}: {fault or 'works'}")
    CertificateDirectory(tmp_path).create()
    model, tls = str(embedded_model()), ("--tls-dir", str(tmp_path))
    with two_hosts() as (here, there), ExitStack() as services:
        for host in (here, there):
            services.enter_context(
                running(host, "worker", "--host", host.address, "--port", "50053", *tls)
            )
        named = [part for host in (here, there) for part in ("--worker", f"{host.address}:50053")]
        scheduler = [
            *("scheduler", model, *named, "--host", here.address, "--port", "50052", *tls),
            *("--invariant", "--kv-cache-gib", "0.03"),
        ]
        if fault is not None:
            refused = subprocess.run(
                here.command(*QUIRE, *scheduler),
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert refused.returncode != 0
            assert "host: must be a loopback address for ranks whose tensors" in refused.stderr
            assert fault in refused.stderr
            return
        services.enter_context(running(here, *scheduler))
        services.enter_context(
            running(
                *(here, "router", model, "--scheduler", f"{here.address}:50052"),
                *("--host", here.address, "--port", "50051", *tls),
            )
        )
        answer = ask(here, str(tmp_path))
    async with (
        start_cluster(invariant=True) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        alone = await client.generate(PROMPT, SamplingParams(**SETTINGS))
    assert answer == [list(alone.token_ids), alone.cumulative_logprob]
