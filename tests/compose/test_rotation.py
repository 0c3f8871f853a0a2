"""Certificates, their authority and keys are replaced under load: nothing restarts or is lost."""

import asyncio
import ssl
import time

import pytest

from quire import SamplingParams
from quire.contract.errors import UnauthenticatedError
from tests.compose.load import Tokens, running_load
from tests.compose.stack import SERVICES, Stack, addresses, inspect

PORT = {"router": 50051, "scheduler": 50052, "worker-0": 50053, "worker-1": 50053}


def shown_certificate(stack: Stack, service: str) -> str:
    """Return the certificate that a service shows to who connects now, PEM."""
    address = next(iter(addresses(stack.container(service)).values()))
    return ssl.get_server_certificate((address, PORT[service]), timeout=10)


def until_shown(stack: Stack) -> None:
    """Return when every service shows the certificate that is in its directory."""
    deadline = time.monotonic() + 30
    for service in SERVICES:
        role = service.partition("-")[0]
        wanted = (stack.certificates / role / "tls.crt").read_text()
        while shown_certificate(stack, service).strip() != wanted.strip():
            assert time.monotonic() < deadline, f"{service} shows an old certificate"
            time.sleep(0.2)


async def test_certificates_and_their_authority_are_replaced_under_load(
    stack: Stack, expected: list[Tokens]
) -> None:
    pids = [inspect(stack.container(service))["State"]["Pid"] for service in SERVICES]
    async with stack.client() as client, running_load(client, expected=expected) as load:
        for step in ("--renew", "--new-authority", "--renew", "--forget-old"):
            await asyncio.to_thread(stack.certs, step)
            await asyncio.to_thread(until_shown, stack)
            await load.until_answers(1)
            # Also for those who come anew.
            async with stack.client() as newcomer:
                await newcomer.generate("The list class", SamplingParams(max_tokens=4))
    load.assert_undisturbed()
    assert [inspect(stack.container(service))["State"]["Pid"] for service in SERVICES] == pids


async def test_a_revoked_key_is_refused_and_others_are_not(
    stack: Stack, expected: list[Tokens]
) -> None:
    params = SamplingParams(max_tokens=4)
    leaving = stack.add_key("leaving")
    async with (
        stack.client() as client,
        stack.client(api_key=leaving) as revoked,
        running_load(client, expected=expected) as load,
    ):
        async with asyncio.timeout(30):
            while True:
                try:
                    await revoked.generate("The list class", params)
                except UnauthenticatedError:
                    await asyncio.sleep(0.1)
                else:
                    break
        await asyncio.to_thread(stack.revoke_key, "leaving")
        with pytest.raises(UnauthenticatedError):
            async with asyncio.timeout(30):
                while True:
                    await revoked.generate("The list class", params)
    load.assert_undisturbed()
