"""Services that meet over TLS, and what they log when they do not."""

import asyncio
import shutil
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from launch.cluster.config import ClusterConfig, LauncherName, embedded_model
from launch.launchers.static import StaticLauncher
from quire import AsyncClient, SamplingParams
from quire.contract.errors import UnavailableError
from quire.rpc import Role, TlsFiles
from router.config import RouterConfig
from router.server import Router
from router.text.tokenize import Tokenizer
from tests.fakes.fake_scheduler import FakeScheduler, running_scheduler
from tests.rpc.router_setup import BACKEND
from tests.rpc.secure_server import make_certificates, secure_server
from worker_svc.service.announcer import Announcer

Lines = list[MutableMapping[str, Any]]


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.rpc.renewal.CHECK_S", 0.0)
    monkeypatch.setattr("quire.rpc.renewal.WAIT_S", 0.05)
    monkeypatch.setattr("router.cells.handshake.CONNECT_S", 0.5)
    monkeypatch.setattr("worker_svc.service.announcer.INTERVAL_S", 0.05)
    monkeypatch.setattr("worker_svc.service.announcer.RETRY_INTERVAL_S", 0.05)


def put(source: Path, directory: Path) -> Path:
    """Give a process the certificate of a role."""
    directory.mkdir(exist_ok=True)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        shutil.copy(source / name, directory)
    return directory


async def until_logged(lines: Lines, event: str, text: str) -> None:
    """Return once the log has a line of this event with this text."""
    try:
        async with asyncio.timeout(60):
            while not any(line["event"] == event and text in str(line) for line in lines):
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"no line of {event} has {text!r}: {lines}")


async def test_a_router_logs_why_it_has_no_session_and_has_one_when_that_is_cured(
    tmp_path: Path,
) -> None:
    ours, foreign = (make_certificates(tmp_path / name).path for name in ("ours", "foreign"))
    directory = put(foreign / "router", tmp_path / "router")
    async with running_scheduler(FakeScheduler(), tls=TlsFiles(ours, Role.SCHEDULER)) as scheduler:
        config = RouterConfig(
            model=str(tmp_path),
            schedulers=(scheduler,),
            port=0,
            tls_dir=str(directory),
        )
        router = Router(config, Tokenizer(BACKEND, num_threads=1))
        with capture_logs() as lines:
            address = await router.start()
            try:
                await until_logged(lines, "scheduler_refuses", "no authority in ca.crt vouches")
                put(ours / "worker", directory)
                await until_logged(
                    lines,
                    "scheduler_refuses",
                    "PERMISSION_DENIED: quire.v1.SchedulerService/Session is for quire-router; "
                    "the certificate of this client is for quire-worker",
                )
                put(ours / "router", directory)
                await asyncio.wait_for(router.wait_until_serving(), 60)
                async with AsyncClient(address, tls_dir=ours) as client:
                    completion = await client.generate("ab", SamplingParams(max_tokens=4))
                assert len(completion.token_ids) == 4
            finally:
                await router.stop()


@pytest.mark.parametrize(
    ("authority", "role", "reason"),
    [
        ("foreign", "worker", "no authority in ca.crt vouches for the server's certificate"),
        ("ours", "client", "is for quire-worker; the certificate of this client is for quire-c"),
    ],
)
async def test_a_worker_logs_why_its_announcement_is_refused(
    tmp_path: Path, authority: str, role: str, reason: str
) -> None:
    for name in ("ours", "foreign"):
        make_certificates(tmp_path / name)
    tls = TlsFiles(tmp_path / authority / role, Role.WORKER)
    async with secure_server(TlsFiles(tmp_path / "ours", Role.SCHEDULER)) as (address, _):
        with capture_logs() as lines:
            announcer = Announcer(address, 0, "127.0.0.1:9", tls)
            try:
                await until_logged(lines, "announcement_failed", reason)
            finally:
                await announcer.stop()


@pytest.mark.parametrize("role", [Role.WORKER, Role.SCHEDULER])
async def test_the_static_launcher_knows_workers_by_their_role(tmp_path: Path, role: Role) -> None:
    certificates = make_certificates(tmp_path / "certificates").path
    async with secure_server(TlsFiles(certificates, role)) as (address, _):
        config = ClusterConfig(
            model=embedded_model(),
            launcher=LauncherName.STATIC,
            workers=(address,),
            tls_dir=str(certificates),
        )
        if role is Role.WORKER:
            await StaticLauncher(config, lambda _: None).start()
            return
        with pytest.raises(UnavailableError, match=address):
            await StaticLauncher(config, lambda _: None, timeout_s=2.0).start()
