"""Certificates that change under servers and channels that run."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from quire.rpc import Role, TlsFiles, open_channel, open_sync_channel
from tests.rpc.secure_server import (
    LIST_MODELS,
    WATCH_CLUSTER,
    call,
    make_certificates,
    secure_server,
)


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are looked at for each call, or 20 times a second by who waits."""
    monkeypatch.setattr("quire.rpc.renewal.CHECK_S", 0.0)
    monkeypatch.setattr("quire.rpc.renewal.WAIT_S", 0.05)


async def test_a_new_certificate_is_used_while_streams_go_on_over_the_old_one(
    tmp_path: Path,
) -> None:
    certificates = make_certificates(tmp_path)
    client = TlsFiles(tmp_path, Role.CLIENT)
    async with (
        secure_server(TlsFiles(tmp_path, Role.ROUTER)) as (address, answering),
        open_channel(address, client, Role.ROUTER) as channel,
    ):
        stream = channel.stream_stream(WATCH_CLUSTER)(iter([b""]))
        assert await stream.read() == b""
        certificates.renew()
        assert await call(channel, LIST_MODELS) is None
        assert await call(channel, LIST_MODELS) is None
        first, second, third = answering.peers
        assert first != second == third, "both ends connected again, once"
        assert not stream.done()
        answering.may_end.set()
        assert await stream.read() == b""
        assert await stream.read() is grpc.aio.EOF


async def test_the_old_connection_is_closed_when_its_last_call_has_ended(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with (
        secure_server(TlsFiles(tmp_path, Role.ROUTER)) as (address, answering),
        open_channel(address, TlsFiles(tmp_path, Role.CLIENT), Role.ROUTER) as channel,
    ):
        stream = channel.stream_stream(WATCH_CLUSTER)(iter([b""]))
        await stream.read()
        assert _num_connections(address) == 1
        certificates.renew()
        await call(channel, LIST_MODELS)
        assert _num_connections(address) == 2
        answering.may_end.set()
        assert await stream.read() == b""
        assert await stream.read() is grpc.aio.EOF
        del stream  # a call that has ended holds its connection as long as it is there
        async with asyncio.timeout(20):
            while _num_connections(address) != 1:
                assert await call(channel, LIST_MODELS) is None


async def test_threads_change_over_to_a_new_certificate_without_an_error(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with secure_server(TlsFiles(tmp_path, Role.ROUTER)) as (address, answering):
        channel = open_sync_channel(address, TlsFiles(tmp_path, Role.CLIENT), Role.ROUTER)
        renewed, began = threading.Event(), threading.Semaphore(0)

        def stream() -> list[bytes]:
            messages: Iterator[bytes] = channel.unary_stream(WATCH_CLUSTER)(b"")
            began.release()
            return list(messages)

        def ask() -> None:
            began.release()
            last_round = False
            while not last_round:
                last_round = renewed.is_set()
                list(channel.unary_stream(LIST_MODELS)(b"", timeout=20))

        streams = [asyncio.create_task(asyncio.to_thread(stream)) for _ in range(2)]
        calls = [asyncio.create_task(asyncio.to_thread(ask)) for _ in range(3)]
        for _ in (*streams, *calls):
            await asyncio.to_thread(began.acquire)
        for _ in range(3):
            certificates.renew()
        renewed.set()
        await asyncio.gather(*calls)
        answering.may_end.set()
        assert await asyncio.gather(*streams) == [[b"", b""]] * 2
        await asyncio.to_thread(channel.close)
        assert len(set(answering.peers)) >= 2


async def test_an_authority_is_replaced_in_three_steps(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "now")
    before = shutil.copytree(tmp_path / "now", tmp_path / "before")
    trusting = tmp_path / "trusting"
    server = TlsFiles(tmp_path / "now", Role.ROUTER)

    async def gets_in(address: str, directory: Path) -> bool:
        tls = TlsFiles(directory, Role.CLIENT)
        async with open_channel(address, tls, Role.ROUTER) as channel:
            return await call(channel, LIST_MODELS) is None

    async with secure_server(server) as (address, _):
        certificates.trust_new_authority()
        shutil.copytree(tmp_path / "now", trusting)
        assert await gets_in(address, before)
        assert await gets_in(address, tmp_path / "now")
        certificates.renew()
        assert not await gets_in(address, before), "it was given no new roots"
        assert await gets_in(address, trusting), "an old certificate is good yet"
        assert await gets_in(address, tmp_path / "now")
        certificates.forget_old_authorities()
        assert not await gets_in(address, trusting)
        assert await gets_in(address, tmp_path / "now")


async def test_who_waits_for_a_connection_gets_it_with_a_certificate_that_comes_meanwhile(
    tmp_path: Path,
) -> None:
    make_certificates(tmp_path / "server")
    make_certificates(tmp_path / "client")
    client = TlsFiles(tmp_path / "client", Role.CLIENT)
    async with (
        secure_server(TlsFiles(tmp_path / "server", Role.ROUTER)) as (address, _),
        open_channel(address, client, Role.ROUTER) as channel,
    ):
        assert await call(channel, LIST_MODELS) is not None
        waiting = asyncio.create_task(channel.channel_ready())
        await asyncio.wait([waiting], timeout=0.3)
        assert not waiting.done()
        for name in ("ca.crt", "tls.crt", "tls.key"):
            shutil.copy(tmp_path / "server" / "client" / name, tmp_path / "client" / "client")
        await asyncio.wait_for(waiting, 20)
        assert await call(channel, LIST_MODELS) is None


async def test_a_directory_that_is_swapped_by_its_link_is_read_as_a_whole(tmp_path: Path) -> None:
    """As the kubelet does it: DIR/tls.crt -> ..data/tls.crt, ..data -> a directory with a date."""
    certificates = make_certificates(tmp_path / "certificates")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    source = tmp_path / "certificates" / "client"
    shutil.copytree(source, mounted / "..2026_1")
    (mounted / "..data").symlink_to("..2026_1")
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (mounted / name).symlink_to(f"..data/{name}")
    async with (
        secure_server(TlsFiles(tmp_path / "certificates", Role.ROUTER)) as (address, answering),
        open_channel(address, TlsFiles(mounted, Role.CLIENT), Role.ROUTER) as channel,
    ):
        assert await call(channel, LIST_MODELS) is None
        certificates.renew()
        shutil.copytree(source, mounted / "..2026_2")
        (mounted / "..new").symlink_to("..2026_2")
        (mounted / "..new").replace(mounted / "..data")
        shutil.rmtree(mounted / "..2026_1")
        assert await call(channel, LIST_MODELS) is None
        old, new = answering.peers
        assert old != new


def _num_connections(address: str) -> int:
    """Return how many connections a server of this machine has."""
    port = f"{int(address.rpartition(':')[2]):04X}"
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    fields = [line.split() for table in tables for line in table.splitlines()[1:]]
    return sum(each[1].endswith(f":{port}") and each[3] == "01" for each in fields)
