"""Tensors leave a machine only encrypted, or where the operator has said that they may."""

import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from launch.authority import CertificateDirectory
from quire.contract.errors import ConfigError
from quire.contract.workers import Meeting
from quire.security.roles import Role
from quire.security.tls import CERTIFICATE, KEY, ROOTS, TlsFiles
from worker_svc.parallel import gloo_tls, link_security
from worker_svc.parallel.communicator import ProcessCommunicator
from worker_svc.parallel.gloo_tls import gloo_device, gloo_tls_fault, write_probe_files
from worker_svc.parallel.link_security import LinkSecurity

REMOTE = "10.0.0.5"


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    CertificateDirectory(tmp_path).create()
    return TlsFiles(tmp_path, Role.WORKER)


@pytest.fixture
def gloo_has_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_security, "gloo_tls_fault", lambda: None)


@pytest.fixture
def gloo_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_security, "gloo_tls_fault", lambda: "this torch has none")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_on_one_machine_ranks_speak_in_the_clear(
    host: str, tls: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_security, "gloo_tls_fault", lambda: pytest.fail("needless"))
    for security in (LinkSecurity(), LinkSecurity(tls), LinkSecurity(tls, insecure=True)):
        assert security.gloo_directory(host) is None


@pytest.mark.usefixtures("gloo_has_tls")
@pytest.mark.parametrize("insecure", [False, True])
def test_between_machines_ranks_use_the_certificates(tls: TlsFiles, insecure: bool) -> None:
    assert LinkSecurity(tls, insecure).gloo_directory(REMOTE) == tls.directory


@pytest.mark.usefixtures("gloo_has_none")
@pytest.mark.parametrize("host", [REMOTE, "worker-0.quire-worker", "fd00::2"])
def test_between_machines_the_clear_is_refused(host: str, tls: TlsFiles) -> None:
    for security, cause in [
        (LinkSecurity(tls), "this torch has none"),
        (LinkSecurity(), "there is no --tls-dir"),
    ]:
        with pytest.raises(
            ConfigError, match=f"host: must be a loopback address .*, got {host}, and {cause}; .*--"
        ):
            security.gloo_directory(host)


@pytest.mark.usefixtures("gloo_has_none")
def test_the_operator_may_allow_the_clear(tls: TlsFiles) -> None:
    assert LinkSecurity(tls, insecure=True).gloo_directory(REMOTE) is None
    assert LinkSecurity(insecure=True).gloo_directory(REMOTE) is None


def test_no_rank_is_met_where_the_clear_is_refused() -> None:
    """Before it listens or connects: the address of the meeting is not even looked at."""
    meeting = Meeting("192.0.2.1:9", REMOTE, 1, 1, bytes(32))
    with pytest.raises(ConfigError, match=f"got {REMOTE}, and there is no --tls-dir"):
        ProcessCommunicator(torch.device("cpu")).join(1, 2, meeting)


# ------------------------------------------------------------------- what the probe finds


def test_what_the_probe_says_of_the_installed_torch(tmp_path: Path) -> None:
    """And that a device of this process, in the clear, is not spoilt by it."""
    write_probe_files(tmp_path)
    fault = gloo_tls_fault()
    print(f"TLS of Gloo in torch {torch.__version__}: {fault or 'works'}")
    makes_device = make_device(str(tmp_path)).returncode == 0
    assert fault is None or torch.__version__ in fault
    assert makes_device or fault is not None
    assert gloo_tls_fault() is fault, "it is tried once"
    gloo_device("127.0.0.1")


def make_device(*directory: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    """Make a device in a process of its own, as Gloo takes its transport once in each."""
    code = (
        "import sys; from pathlib import Path\n"
        "from worker_svc.parallel.gloo_tls import gloo_device\n"
        f"{before}\n"
        "gloo_device('127.0.0.1', *map(Path, sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *directory],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_process_that_spoke_in_the_clear_does_not_claim_tls(tmp_path: Path) -> None:
    """Gloo would go on in the clear and say nothing."""
    write_probe_files(tmp_path)
    made = make_device(str(tmp_path), before="gloo_device('127.0.0.1')")
    assert made.returncode != 0
    assert "this process has TCP for ranks, not TCP_TLS: restart it" in made.stderr


def test_processes_of_the_probe_meet_and_fail_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the clear, which every Gloo can; not where one asks for TLS with no such files."""
    assert gloo_tls._can_meet(gloo_tls._Trial(None, None, "", meets=True))
    monkeypatch.setattr(gloo_tls, "_PROCESS_S", 10.0)
    assert not gloo_tls._can_meet(gloo_tls._Trial(None, tmp_path, "", meets=False))


@pytest.fixture
def fresh_probe() -> Any:
    gloo_tls_fault.cache_clear()
    yield
    gloo_tls_fault.cache_clear()


@pytest.mark.usefixtures("fresh_probe")
@pytest.mark.parametrize(
    ("meets", "fault"),
    [
        ({"own": True, "foreign": False, None: False}, None),
        ({"own": False, "foreign": False, None: False}, "of one authority cannot meet"),
        ({"own": True, "foreign": True, None: False}, "another authority is accepted"),
        ({"own": True, "foreign": False, None: True}, "in the clear is accepted"),
    ],
)
def test_a_gloo_with_tls_must_tell_ranks_from_strangers(
    meets: dict[str | None, bool], fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(gloo_tls.subprocess, "run", lambda *_, **__: made)

    def can_meet(trial: Any) -> bool:
        return meets[None if trial.second is None else trial.second.name]

    monkeypatch.setattr(gloo_tls, "_can_meet", can_meet)
    found = gloo_tls_fault()
    assert found is None if fault is None else fault in (found or "")


def test_the_certificates_of_the_probe_are_good_for_mutual_tls(tmp_path: Path) -> None:
    """Each vouches for itself and for no other."""
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    for each in (own, foreign):
        each.mkdir()
        write_probe_files(each)
    assert shake_hands(own, own)
    assert not shake_hands(own, foreign)


def shake_hands(server: Path, client: Path) -> bool:
    contexts = []
    for directory, protocol in (
        (server, ssl.PROTOCOL_TLS_SERVER),
        (client, ssl.PROTOCOL_TLS_CLIENT),
    ):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(directory / CERTIFICATE, directory / KEY)
        context.load_verify_locations(directory / ROOTS)
        contexts.append(context)
    ends = socket.socketpair()
    results: list[bool] = []

    def serve() -> None:
        try:
            with contexts[0].wrap_socket(ends[0], server_side=True) as connection:
                connection.sendall(b"!")
                results.append(True)
        except ssl.SSLError:
            ends[0].close()
            results.append(False)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with contexts[1].wrap_socket(ends[1]) as connection:
            results.append(connection.recv(1) == b"!")
    except OSError:
        ends[1].close()
        results.append(False)
    thread.join()
    return all(results)
