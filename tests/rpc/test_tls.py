"""Which peers are admitted over TLS, which are not, and what errors they get."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from launch.authority import Authority, CertificateDirectory
from quire import Client
from quire.contract.errors import ConfigError, PermissionDeniedError, UnavailableError
from quire.rpc import Role, TlsFiles, open_channel
from quire.security.handshake import explain
from quire.security.roles import ALLOWED_ROLES
from tests.rpc.secure_server import (
    LIST_MODELS,
    METHODS,
    call,
    make_certificates,
    secure_server,
    write_pair,
)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "certificates").path


def raw_channel(address: str, directory: Path, server_name: str = Role.ROUTER) -> grpc.aio.Channel:
    """A channel with whatever the files hold, which TlsFiles would refuse to use."""
    roots, certificate, key = (
        (directory / name).read_bytes() if (directory / name).exists() else None
        for name in ("ca.crt", "tls.crt", "tls.key")
    )
    return grpc.aio.secure_channel(
        address,
        grpc.ssl_channel_credentials(roots, key, certificate),
        options=[("grpc.ssl_target_name_override", server_name)],
    )


async def test_each_role_may_call_what_is_listed_for_it_and_nothing_else(
    certificates: Path,
) -> None:
    refused = 0
    async with secure_server(TlsFiles(certificates, Role.ROUTER)) as (address, answering):
        answering.may_end.set()
        for role in Role:
            tls = TlsFiles(certificates, role)
            async with open_channel(address, tls, Role.ROUTER) as channel:
                for method in METHODS:
                    error = await call(channel, method)
                    if role in ALLOWED_ROLES[method]:
                        assert error is None, (role, method, error)
                        continue
                    refused += 1
                    assert error is not None, (role, method)
                    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
                    assert method[1:] in error.details()
                    assert f"the certificate of this client is for {role}" in error.details()
    assert refused > len(METHODS) * 3


def test_only_the_roles_that_need_to_may_call() -> None:
    """The table itself, so that it is not changed by oversight."""
    expected = {
        "InferenceService": {Role.CLIENT, Role.OPERATOR},
        "VllmEngine": {Role.CLIENT, Role.OPERATOR},
        "ClusterService/Resize": {Role.OPERATOR},
        "ClusterService/Roll": {Role.OPERATOR},
        "SchedulerService/Session": {Role.ROUTER},
        "SchedulerService/AnnounceWorker": {Role.WORKER},
        "SchedulerService/Drain": {Role.OPERATOR},
        "WorkerService/FetchBlocks": {Role.WORKER},
        "SchedulerService/Resize": {Role.OPERATOR},
        "WorkerService/Describe": {Role.SCHEDULER, Role.OPERATOR},
        "WorkerService": {Role.SCHEDULER},
    }
    for method in METHODS:
        roles = next(roles for part, roles in expected.items() if part in method)
        assert ALLOWED_ROLES[method] == roles, method


async def test_a_method_that_is_in_no_list_is_refused_to_every_role(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ALLOWED_ROLES, LIST_MODELS)
    async with (
        secure_server(TlsFiles(certificates, Role.ROUTER)) as (address, _),
        open_channel(address, TlsFiles(certificates, Role.CLIENT), Role.ROUTER) as channel,
    ):
        error = await call(channel, LIST_MODELS)
        assert error is not None
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "is for no role" in error.details()


@pytest.mark.parametrize("role", Role)
async def test_health_answers_every_role(certificates: Path, role: Role) -> None:
    async with (
        secure_server(TlsFiles(certificates, Role.WORKER)) as (address, _),
        open_channel(address, TlsFiles(certificates, role), Role.WORKER) as channel,
    ):
        response = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=20
        )
        assert response.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_certificate_without_a_role_may_call_nothing(
    certificates: Path, tmp_path: Path
) -> None:
    authority = _authority(certificates)
    trusted = certificates / "client" / "ca.crt"
    directory = write_pair(tmp_path / "other", authority, "other.example", trusted)
    async with (
        secure_server(TlsFiles(certificates, Role.ROUTER)) as (address, _),
        open_channel(address, TlsFiles(directory, Role.CLIENT), Role.ROUTER) as channel,
    ):
        error = await call(channel, LIST_MODELS)
        assert error is not None
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "for no role of Quire" in error.details()


async def test_peers_that_the_authority_does_not_vouch_for_get_no_connection(
    certificates: Path, tmp_path: Path
) -> None:
    authority, trusted = _authority(certificates), certificates / "client" / "ca.crt"
    long_ago = datetime.now(UTC) - timedelta(days=30)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    (nothing / "ca.crt").write_bytes(trusted.read_bytes())
    foreign = make_certificates(tmp_path / "foreign").path
    async with secure_server(TlsFiles(certificates, Role.ROUTER)) as (address, answering):
        strangers = {
            "no certificate": nothing,
            "of another authority": write_pair(
                tmp_path / "stranger", Authority.make(), Role.CLIENT, trusted
            ),
            "expired": write_pair(
                tmp_path / "expired", authority, Role.CLIENT, trusted, now=long_ago
            ),
            "trusts another authority": foreign / "client",
        }
        for name, directory in strangers.items():
            async with raw_channel(address, directory) as channel:
                error = await call(channel, LIST_MODELS)
                assert error is not None, name
                assert error.code() is grpc.StatusCode.UNAVAILABLE, name
        assert not answering.peers
        async with raw_channel(address, certificates / "client") as channel:
            assert await call(channel, LIST_MODELS) is None


async def test_a_server_is_known_by_its_role(certificates: Path) -> None:
    """A stolen worker cannot pass for a scheduler, whatever its address."""
    async with (
        secure_server(TlsFiles(certificates, Role.WORKER)) as (address, _),
        open_channel(address, TlsFiles(certificates, Role.ROUTER), Role.SCHEDULER) as channel,
    ):
        error = await call(channel, "/quire.v1.SchedulerService/Session")
        assert error is not None
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "another name or role" in explain(error.details())


async def test_an_expired_server_is_not_talked_to(certificates: Path, tmp_path: Path) -> None:
    authority, trusted = _authority(certificates), certificates / "router" / "ca.crt"
    long_ago = datetime.now(UTC) - timedelta(days=30)
    directory = write_pair(tmp_path / "old", authority, Role.ROUTER, trusted, now=long_ago)
    with pytest.raises(ConfigError, match="expired"):
        TlsFiles(directory, Role.ROUTER)
    # A server that uses it all the same.
    pair = [(directory / name).read_bytes() for name in ("tls.key", "tls.crt")]
    server = grpc.aio.server()
    credentials = grpc.ssl_server_credentials([tuple(pair)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    tls = TlsFiles(certificates, Role.CLIENT)
    async with open_channel(f"127.0.0.1:{port}", tls, Role.ROUTER) as channel:
        error = await call(channel, LIST_MODELS)
    await server.stop(0)
    assert error is not None
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "the server's certificate has expired" in explain(error.details())


async def test_tls_and_the_clear_do_not_mix(certificates: Path) -> None:
    async with (
        secure_server(TlsFiles(certificates, Role.ROUTER)) as (address, _),
        open_channel(address) as channel,
    ):
        error = await call(channel, LIST_MODELS)
        assert error is not None
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    async with (
        secure_server(None) as (address, _),
        open_channel(address, TlsFiles(certificates, Role.CLIENT), Role.ROUTER) as channel,
    ):
        error = await call(channel, LIST_MODELS)
        assert error is not None
        assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_without_client_certificates_the_roots_are_enough(
    certificates: Path, tmp_path: Path
) -> None:
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots" / "ca.crt").write_bytes((certificates / "client" / "ca.crt").read_bytes())
    client = TlsFiles(tmp_path / "roots", Role.CLIENT)
    router = TlsFiles(certificates, Role.ROUTER)
    async with (
        secure_server(router, client_certificates=False) as (address, answering),
        open_channel(address, client, Role.ROUTER) as channel,
    ):
        assert await call(channel, LIST_MODELS) is None
        assert answering.peers == [b""]
        port = address.rpartition(":")[2]
        async with open_channel(f"localhost:{port}", client) as by_host:
            assert await call(by_host, LIST_MODELS) is None, "localhost is in the certificate"


async def test_the_sdk_reports_what_is_wrong(certificates: Path) -> None:
    def ask(address: str, directory: Path | None) -> None:
        with Client(address, tls_dir=directory) as client:
            client.list_models()

    async with secure_server(TlsFiles(certificates, Role.ROUTER)) as (address, _):
        with pytest.raises(UnavailableError, match="does the server want TLS"):
            await asyncio.to_thread(ask, address, None)
        foreign = make_certificates(certificates.parent / "foreign").path
        with pytest.raises(UnavailableError, match=r"no authority in ca\.crt vouches"):
            await asyncio.to_thread(ask, address, foreign)
        with pytest.raises(PermissionDeniedError, match="quire-client or quire-operator"):
            await asyncio.to_thread(ask, address, certificates / "worker")
    async with secure_server(None) as (address, _):
        with pytest.raises(UnavailableError, match="the server does not speak TLS"):
            await asyncio.to_thread(ask, address, certificates)
    with pytest.raises(ConfigError, match=r"ca\.crt does not exist"):
        Client("127.0.0.1:1", tls_dir=certificates / "nowhere")


def _authority(certificates: Path) -> Authority:
    return CertificateDirectory(certificates).authority()
