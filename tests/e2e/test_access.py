"""A whole cluster under TLS with API keys: every RPC that there is, with every credential.

RPCs are taken from the protos, so that one which is added and not entered here fails.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc_reflection.v1alpha import reflection_pb2

from launch.authority import CertificateDirectory
from launch.cluster.servicer import Control
from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model
from quire import AsyncClient, SamplingParams
from quire.security.api_key_file import ApiKey, digest, editing
from quire.security.api_keys import generate_key
from tests.every_rpc import every_rpc

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROLES = ("quire-router", "quire-scheduler", "quire-worker", "quire-client", "quire-operator")
USERS = ("quire-client", "quire-operator")
INFERENCE = "quire.v1.InferenceService"
SCHEDULER = "quire.v1.SchedulerService"
WORKER = "quire.v1.WorkerService"
CLUSTER = "quire.v1.ClusterService"
OPEN_INFERENCE = "inference.GRPCInferenceService"
ENGINE = "vllm.grpc.engine.VllmEngine"
# Which server has a service, by its role, and who may call what of it.
SERVERS = {
    INFERENCE: "quire-router",
    OPEN_INFERENCE: "quire-router",
    ENGINE: "quire-router",
    SCHEDULER: "quire-scheduler",
    WORKER: "quire-worker",
    CLUSTER: "quire-operator",  # of `quire serve`
}
MAY_CALL = {
    f"{INFERENCE}/Generate": USERS,
    f"{INFERENCE}/Chat": USERS,
    f"{INFERENCE}/Resume": USERS,
    f"{INFERENCE}/Embed": USERS,
    f"{INFERENCE}/Abort": USERS,
    f"{INFERENCE}/Tokenize": USERS,
    f"{INFERENCE}/Detokenize": USERS,
    f"{INFERENCE}/ListModels": USERS,
    f"{INFERENCE}/WatchCluster": USERS,
    f"{OPEN_INFERENCE}/ServerLive": USERS,
    f"{OPEN_INFERENCE}/ServerReady": USERS,
    f"{OPEN_INFERENCE}/ModelReady": USERS,
    f"{OPEN_INFERENCE}/ServerMetadata": USERS,
    f"{OPEN_INFERENCE}/ModelMetadata": USERS,
    f"{OPEN_INFERENCE}/ModelConfig": USERS,
    f"{OPEN_INFERENCE}/ModelStatistics": USERS,
    f"{OPEN_INFERENCE}/ModelInfer": USERS,
    f"{OPEN_INFERENCE}/ModelStreamInfer": USERS,
    f"{ENGINE}/Generate": USERS,
    f"{ENGINE}/Embed": USERS,
    f"{ENGINE}/HealthCheck": USERS,
    f"{ENGINE}/Abort": USERS,
    f"{ENGINE}/GetModelInfo": USERS,
    f"{ENGINE}/GetServerInfo": USERS,
    f"{ENGINE}/GetLoads": USERS,
    f"{WORKER}/Describe": ("quire-scheduler", "quire-operator"),
    f"{WORKER}/OpenRendezvous": ("quire-scheduler",),
    f"{WORKER}/LoadModel": ("quire-scheduler",),
    f"{WORKER}/ProfileCache": ("quire-scheduler",),
    f"{WORKER}/InitCache": ("quire-scheduler",),
    f"{WORKER}/Execute": ("quire-scheduler",),
    f"{WORKER}/Heartbeat": ("quire-scheduler",),
    f"{WORKER}/Mirror": ("quire-scheduler",),
    f"{WORKER}/Reset": ("quire-scheduler",),
    f"{WORKER}/ImportBlocks": ("quire-scheduler",),
    f"{WORKER}/FetchBlocks": ("quire-worker",),
    f"{CLUSTER}/Resize": ("quire-operator",),
    f"{SCHEDULER}/Resize": ("quire-operator",),
    f"{SCHEDULER}/Session": ("quire-router",),
    f"{SCHEDULER}/AnnounceWorker": ("quire-worker",),
    # Last, since it ends the cell, and replaces every process.
    f"{SCHEDULER}/Drain": ("quire-operator",),
    f"{CLUSTER}/Roll": ("quire-operator",),
}
# Open to any certificate of the authority: the first message to send, and who must answer.
LIST_SERVICES = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
OPEN = {
    "grpc.health.v1.Health/Check": b"",
    "grpc.health.v1.Health/List": b"",
    "grpc.health.v1.Health/Watch": b"",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": LIST_SERVICES,
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": LIST_SERVICES,
}
ADMIN_ROUTES = {"/livez", "/metrics", "/metrics/vllm", "/readyz"}
PROMPT = "The xylophone canary sings"

OK = grpc.StatusCode.OK
PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
REFUSALS = {PERMISSION_DENIED, UNAUTHENTICATED, UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED}


@dataclass
class Site:
    """The cluster, and the credentials of friends and strangers."""

    cluster: Cluster
    control: str
    tls_dir: Path
    foreign_dir: Path
    keys: dict[str, str]
    _stack: AsyncExitStack
    _channels: dict[tuple[str, str], grpc.aio.Channel] = field(default_factory=dict)

    def address_of(self, role: str) -> str:
        name = role.removeprefix("quire-")
        if name == "operator":
            return self.control
        return next(s.address for s in self.cluster.services if s.name.split()[0] == name)

    async def status(
        self,
        method: str,
        server: str,
        credential: str,
        key: str | None = None,
        request: bytes | None = b"",
    ) -> grpc.StatusCode:
        """Make a call and return how it ends, or OK when a first answer comes.

        Args:
            method: "package.Service/Method".
            server: role of the one to call.
            credential: a role, "foreign" with a role behind it, "none", or "in the clear".
            key: API key to bring.
            request: the one message that is sent, as bytes; with None nothing is, ever.
        """
        metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        call = (await self.channel(server, credential)).stream_stream(f"/{method}")(
            metadata=metadata, timeout=30
        )
        try:
            if request is not None:
                await call.write(request)
                await call.done_writing()
            return OK if await call.read() is not grpc.aio.EOF else await call.code()
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            call.cancel()

    async def channel(self, server: str, credential: str) -> grpc.aio.Channel:
        if (server, credential) not in self._channels:
            channel = self._open(self.address_of(server), server, credential)
            self._channels[server, credential] = await self._stack.enter_async_context(channel)
        return self._channels[server, credential]

    def _open(self, address: str, server: str, credential: str) -> grpc.aio.Channel:
        if credential == "in the clear":
            return grpc.aio.insecure_channel(address)
        roots = (self.tls_dir / "client" / "ca.crt").read_bytes()
        pair: tuple[bytes, ...] = ()
        if credential != "none":
            foreign, _, role = credential.rpartition(" ")
            base = self.foreign_dir if foreign else self.tls_dir
            directory = base / role.removeprefix("quire-")
            pair = ((directory / "tls.key").read_bytes(), (directory / "tls.crt").read_bytes())
        return grpc.aio.secure_channel(
            address,
            grpc.ssl_channel_credentials(roots, *pair),
            # Connections of their own: grpc shares those of channels that look alike.
            options=(
                ("grpc.ssl_target_name_override", server),
                ("grpc.use_local_subchannel_pool", 1),
            ),
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory) -> AsyncIterator[Site]:
    base = tmp_path_factory.mktemp("access")
    for name in ("tls", "foreign"):
        CertificateDirectory(base / name).create()
    keys = {name: generate_key() for name in ("valid", "revoked", "expired", "unknown")}
    now = datetime.now(UTC)
    ends = {"expired": now - timedelta(seconds=1)}
    with editing(base / "keys.jsonl") as entries:
        entries += [
            ApiKey(name, digest(keys[name]), now, ends.get(name))
            for name in ("valid", "revoked", "expired")
        ]
    cluster = Cluster(
        ClusterConfig(
            model=embedded_model(),
            port=None,
            grpc_port=0,
            kv_cache_gib=0.03125,
            tls_dir=str(base / "tls"),
            api_keys=base / "keys.jsonl",
            admin_port=0,
        )
    )
    await cluster.start()
    control = Control(cluster)
    try:
        async with AsyncExitStack() as stack:
            site = Site(cluster, await control.start(), base / "tls", base / "foreign", keys, stack)
            # It was a good key once: the cluster has to forget it while it runs.
            method = f"{INFERENCE}/ListModels"
            revoked = (method, "quire-router", "quire-client", keys["revoked"])
            assert await site.status(*revoked) == OK
            with editing(base / "keys.jsonl") as entries:
                entries[:] = [key for key in entries if key.name != "revoked"]
            while await site.status(*revoked) == OK:
                pass
            yield site
    finally:
        await control.stop()
        await cluster.stop()


async def test_every_rpc_is_entered_here() -> None:
    assert set(every_rpc()) == MAY_CALL.keys()


async def test_no_server_has_a_service_that_is_not_entered_here(site) -> None:
    known = {name.partition("/")[0] for name in (*MAY_CALL, *OPEN)}
    for service, server in SERVERS.items():
        call = (await site.channel(server, "quire-operator")).stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
        listed = {each.name for each in answer.list_services_response.service}
        assert service in listed
        assert listed <= known


@pytest.mark.parametrize("method", MAY_CALL)
async def test_only_the_right_certificate_with_a_valid_key_gets_through(site, method) -> None:
    server = SERVERS[method.partition("/")[0]]
    valid = site.keys["valid"]
    may = MAY_CALL[method]
    outcomes = {
        credential: await site.status(method, server, credential, valid)
        for credential in ("in the clear", "none", *(f"foreign {role}" for role in may))
    }
    assert set(outcomes.values()) == {UNAVAILABLE}, outcomes
    # Refused before any of the request is there: nothing of it has to be held for strangers.
    wrong = {
        role: await site.status(method, server, role, valid, request=None)
        for role in ROLES
        if role not in may
    }
    assert len(wrong) >= 3
    assert set(wrong.values()) == {PERMISSION_DENIED}, wrong
    if server == "quire-router":
        keys = (None, "", site.keys["unknown"], site.keys["revoked"], site.keys["expired"])
        refused = [
            await site.status(method, server, role, key, request=None)
            for role in may
            for key in keys
        ]
        assert set(refused) == {UNAUTHENTICATED}, refused


async def test_requests_are_bounded_and_parsed_under_tls_as_in_the_clear(site) -> None:
    """The check of roles reads messages of unary calls itself."""
    valid = site.keys["valid"]
    for method, request, expected in (
        ("Abort", b"", OK),
        ("Abort", None, grpc.StatusCode.INVALID_ARGUMENT),
        ("Abort", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ("Generate", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ("Abort", bytes(5 * 2**20), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("Generate", bytes(5 * 2**20), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ):
        channel = await site.channel("quire-router", "quire-client")
        call = channel.stream_stream(f"/{INFERENCE}/{method}")(
            metadata=(("authorization", f"Bearer {valid}"),), timeout=30
        )
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if request is not None:
                await call.write(request)
            await call.done_writing()
            await call.read()
        assert await call.code() == expected, (method, expected)


@pytest.mark.parametrize("method", OPEN)
@pytest.mark.parametrize("server", SERVERS.values())
async def test_health_and_reflection_ask_for_any_certificate_and_for_no_key(
    site, method, server
) -> None:
    request = OPEN[method]
    for role in ROLES:
        assert await site.status(method, server, role, request=request) == OK
    for stranger in ("in the clear", "none", "foreign quire-client"):
        assert await site.status(method, server, stranger, request=request) == UNAVAILABLE


async def test_the_admin_ports_have_these_routes_and_show_nothing_of_requests_or_keys(site) -> None:
    address = site.address_of("quire-router")
    async with AsyncClient(
        address, tls_dir=str(site.tls_dir / "client"), api_key=site.keys["valid"]
    ) as client:
        completion = await client.generate(PROMPT, SamplingParams(max_tokens=8, temperature=0.0))
    secrets = [
        "xylophone",
        completion.text,
        "BEGIN",
        str(site.tls_dir),
        *site.keys.values(),
        *(digest(key).hex() for key in site.keys.values()),
    ]
    for service in site.cluster.services:
        _, _, body = fetch(service.admin_address, "/no-such-route")
        assert set(body.split()) == ADMIN_ROUTES
        for route in ADMIN_ROUTES:
            status, headers, body = fetch(service.admin_address, route)
            assert status == 200
            shown = f"{headers}{body}"
            assert not [secret for secret in secrets if secret in shown]
            assert fetch(service.admin_address, route, "POST")[0] == 405


def fetch(address: str, path: str, method: str = "GET") -> tuple[int, str, str]:
    host, _, port = address.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, str(response.headers), response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("method", MAY_CALL)
async def test_who_may_call_is_answered(site, method) -> None:
    """The request is empty, and may well be refused for that."""
    server = SERVERS[method.partition("/")[0]]
    for role in MAY_CALL[method]:
        key = site.keys["valid"] if server == "quire-router" else None
        status = await site.status(method, server, role, key)
        assert status not in REFUSALS, (role, status)
