"""Servers on the loopback of IPv6: they listen there, and report an address that can be dialled."""

import socket
from pathlib import Path

import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.responses import PlainTextResponse

from quire import rpc
from quire.contract.addresses import split_address
from router.http.server import HttpServer
from tests.fakes.fake_scheduler import FakeScheduler, running_scheduler
from tests.rpc.router_setup import PROMPT, router_for

SPELLINGS = ("::1", "[::1]")
LIMIT_S = 60.0  # of a call that would wait for ever


def has_loopback() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not has_loopback(), reason="this machine has no loopback of IPv6")


def check_listens(address: str) -> None:
    """A server listens at an address of the only spelling that clients take."""
    host, port = split_address(address)
    assert (host, address) == ("::1", f"[::1]:{port}")
    with socket.create_connection(("::1", int(port)), timeout=LIMIT_S):
        pass


@pytest.mark.parametrize("host", SPELLINGS)
async def test_grpc_is_answered_where_it_says_so(host: str) -> None:
    server = rpc.Server([])
    address = await server.start(host, 0)
    try:
        check_listens(address)
        await server.set_serving(True)
        async with rpc.open_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop(0)


@pytest.mark.parametrize("host", SPELLINGS)
async def test_http_is_answered_where_it_says_so(host: str) -> None:
    server = HttpServer(PlainTextResponse("here"))
    address = await server.start(host, 0)
    try:
        check_listens(address)
        async with httpx.AsyncClient(timeout=LIMIT_S) as http:
            assert (await http.get(f"http://{address}/")).text == "here"
    finally:
        await server.stop()


@pytest.mark.parametrize("host", SPELLINGS)
async def test_a_router_has_its_scheduler_and_its_clients_there(host: str, tmp_path: Path) -> None:
    async with (
        running_scheduler(FakeScheduler(), host=host) as scheduler,
        router_for(tmp_path, (scheduler,), host=host, http_port=0) as (router, client, address),
    ):
        await router.wait_until_serving()
        for each in (scheduler, address, router.http_address):
            check_listens(each)
        assert (await client.generate(PROMPT)).token_ids
        async with httpx.AsyncClient(timeout=LIMIT_S) as http:
            url = f"http://{router.http_address}/v1/completions"
            answer = await http.post(url, json={"prompt": PROMPT, "max_tokens": 3})
        assert answer.status_code == 200, answer.text
