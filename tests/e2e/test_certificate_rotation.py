"""Certificates and their authority are replaced under streams that run: no token is lost."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cryptography import x509

from launch.authority import CertificateDirectory
from launch.cluster.process import ServiceProcess
from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model
from quire import AsyncClient, SamplingParams
from quire.contract.errors import PermissionDeniedError, UnavailableError
from quire.contract.outputs import Delta
from quire.sdk.collect import Collector

PARAMS = [
    SamplingParams(temperature=t, seed=seed, max_tokens=600, ignore_eos=True)
    for seed, t in enumerate((0.0, 0.7, 1.0))
]
PROMPTS = ("The list class", "Return a copy of the", "A function definition")

# More than can have been under way.
AFTER_A_DEATH = 24

T = TypeVar("T")


@asynccontextmanager
async def secure_cluster(tls_dir: Path) -> AsyncIterator[Cluster]:
    """A router, a scheduler and two workers, as processes."""
    cluster = Cluster(
        ClusterConfig(
            model=embedded_model(),
            port=None,
            grpc_port=0,
            tensor_parallel_size=2,
            tls_dir=str(tls_dir),
            kv_cache_gib=0.0625,
            distributed_timeout_s=5.0,
        )
    )
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


class Load:
    """Streams that run while things change around them.

    Attributes:
        num_tokens: of each stream, so far.
    """

    def __init__(self, target: str, tls_dir: Path) -> None:
        self._client = AsyncClient(target, tls_dir=tls_dir)
        self.num_tokens = [0] * len(PROMPTS)
        self.tasks = [asyncio.create_task(self._stream(index)) for index in range(len(PROMPTS))]

    async def _stream(self, index: int) -> tuple[int, ...]:
        collector = Collector()
        async for event in self._client.stream(PROMPTS[index], PARAMS[index]):
            collector.add(event)
            if isinstance(event, Delta):
                self.num_tokens[index] += len(event.token_ids)
        (completion,) = collector.completions()
        return completion.token_ids

    async def tokens(self) -> list[tuple[int, ...]]:
        """Return all tokens, once the streams have ended."""
        try:
            return await asyncio.gather(*self.tasks)
        finally:
            await self._client.close()

    async def progress(self, num_tokens: int = 1) -> None:
        """Return when each stream has had more tokens since this was called."""
        before = list(self.num_tokens)
        while (
            min(now - then for now, then in zip(self.num_tokens, before, strict=True)) < num_tokens
        ):
            for task in self.tasks:
                assert not task.done(), f"a stream has ended before the test: {task}"
            await asyncio.sleep(0.01)


def serial_number(address: str, tls_dir: Path, version: ssl.TLSVersion) -> int:
    """Connect and return the serial number of the certificate that is shown."""
    context = ssl.create_default_context(cafile=str(tls_dir / "client" / "ca.crt"))
    context.check_hostname = False
    context.load_cert_chain(tls_dir / "client" / "tls.crt", tls_dir / "client" / "tls.key")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


async def may_ask(target: str, tls_dir: Path) -> bool:
    """Return whether a client with these certificates gets an answer."""
    async with AsyncClient(target, tls_dir=tls_dir) as client:
        try:
            return bool(await client.list_models())
        except UnavailableError:
            return False


async def replaced(service: ServiceProcess) -> None:
    """Kill a service, and return when there is another; clients read on meanwhile."""
    killed = service.pid
    os.kill(killed, signal.SIGKILL)
    while service.pid == killed:
        await asyncio.sleep(0.01)


async def soon(what: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wait_for(what, 120)


@pytest.mark.timeout(280)
async def test_certificates_and_authority_change_under_running_streams(tmp_path: Path) -> None:
    tls_dir = tmp_path / "certificates"
    certificates = CertificateDirectory(tls_dir)
    certificates.create()
    async with secure_cluster(tls_dir) as cluster:
        target = cluster.router.address
        worker, _, scheduler, router = cluster.services
        expected = await soon(Load(target, tls_dir).tokens())

        def shown() -> set[int]:
            """What every service shows to who connects now."""
            return {
                serial_number(service.address, tls_dir, ssl.TLSVersion.TLSv1_3)
                for service in cluster.services
            }

        first = shown()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            serial_number(router.address, tls_dir, ssl.TLSVersion.TLSv1_2)

        load = Load(target, tls_dir)
        await soon(load.progress())

        certificates.renew()
        renewed = shown()
        assert not renewed & first
        await soon(load.progress())

        # A new authority, in three steps.
        before = shutil.copytree(tls_dir, tmp_path / "before")
        certificates.trust_new_authority()
        assert shown() == renewed
        trusting = shutil.copytree(tls_dir, tmp_path / "trusting")
        assert await may_ask(target, before)
        certificates.renew()
        assert not shown() & renewed
        assert await may_ask(target, trusting), "certificates of the old authority are good yet"
        # Who connects again, after the death of a service, does so with what there is then.
        await soon(replaced(scheduler))
        await soon(load.progress(AFTER_A_DEATH))
        certificates.forget_old_authorities()
        assert not await may_ask(target, trusting)
        assert not await may_ask(target, before)
        assert await may_ask(target, tls_dir)
        await soon(replaced(worker))
        await soon(load.progress(AFTER_A_DEATH))

        assert await soon(load.tokens()) == expected
        # A peer that is not a client of the router is none with the newest certificate either.
        async with AsyncClient(target, tls_dir=tls_dir / "scheduler") as client:
            with pytest.raises(PermissionDeniedError):
                await client.list_models()
