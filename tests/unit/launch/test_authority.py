"""`quire certs`: what it writes and refuses; what TlsFiles reports of files that are wrong."""

import math
import re
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from unittest.mock import Mock

import pytest
from cryptography import x509
from structlog.testing import capture_logs
from typer.testing import CliRunner

from launch.authority import Authority, CertificateDirectory
from launch.cli.main import app
from quire.contract.errors import ConfigError
from quire.rpc import Role, TlsFiles
from quire.security.tls import WARN_EVERY_S


@pytest.fixture
def certificates(tmp_path: Path) -> CertificateDirectory:
    made = CertificateDirectory(tmp_path / "certificates")
    made.create(["llm.example.com", "10.1.2.3"], days=30)
    return made


def certificate_of(certificates: CertificateDirectory, role: Role) -> x509.Certificate:
    return x509.load_pem_x509_certificate(
        (certificates.path / role.directory / "tls.crt").read_bytes()
    )


@pytest.mark.parametrize("role", Role)
def test_each_certificate_names_its_role_and_the_hosts(
    certificates: CertificateDirectory, role: Role
) -> None:
    certificate = certificate_of(certificates, role)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [role, "localhost", "llm.example.com"]
    addresses = names.get_values_for_type(x509.IPAddress)
    assert [str(each) for each in addresses] == ["127.0.0.1", "::1", "10.1.2.3"]
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29.9) < left <= timedelta(days=30)
    certificate.verify_directly_issued_by(certificates.authority().certificate)


def test_keys_are_for_their_owner_alone(certificates: CertificateDirectory) -> None:
    keys = list(certificates.path.glob("*/*.key"))
    assert len(keys) == len(Role) + 1
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
    assert stat.S_IMODE((certificates.path / "authority").stat().st_mode) == 0o700
    assert not list(certificates.path.glob("*/.*")), "nothing is left behind"


def test_renewal_makes_new_keys_for_the_same_hosts(certificates: CertificateDirectory) -> None:
    before = certificate_of(certificates, Role.WORKER)
    certificates.renew(["more.example.com"], days=1)
    after = certificate_of(certificates, Role.WORKER)
    assert before.serial_number != after.serial_number
    assert before.public_key() != after.public_key()
    names = after.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        *["quire-worker", "localhost", "llm.example.com", "more.example.com"]
    ]


def test_what_was_interrupted_can_be_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = CertificateDirectory(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "_issue_all", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            certificates.create()

    certificates.create()

    assert TlsFiles(tmp_path, Role.ROUTER).current().certificate


def test_an_authority_is_replaced_in_order_only(certificates: CertificateDirectory) -> None:
    old = certificates.authority().certificate

    def trusted() -> list[x509.Certificate]:
        return x509.load_pem_x509_certificates(
            (certificates.path / "router" / "ca.crt").read_bytes()
        )

    certificates.trust_new_authority()
    new = certificates.authority().certificate
    assert trusted() == [new, old]
    certificate_of(certificates, Role.ROUTER).verify_directly_issued_by(old)
    with pytest.raises(ConfigError, match="older authority: --renew first"):
        certificates.forget_old_authorities()
    assert trusted() == [new, old]
    certificates.renew()
    certificate_of(certificates, Role.ROUTER).verify_directly_issued_by(new)
    certificates.forget_old_authorities()
    assert trusted() == [new]


def test_the_command_reports_what_it_did_and_why_not(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["certs", *arguments])
        return result.exit_code, result.output

    directory = str(tmp_path / "c")
    for arguments, message in (
        ((directory, "--renew"), "has no authority"),
        ((directory, "--new-authority"), "has no authority"),
        ((directory, "--renew", "--forget-old"), "one at a time"),
        ((directory, "--days", "0"), "--days must be in"),
        ((directory, "--host", "ü.example"), "neither a DNS name nor an IP address"),
    ):
        status, output = run(*arguments)
        assert (status, message in output) == (1, True), output
    for option in ((), ("--renew",), ("--new-authority",), ("--renew",), ("--forget-old",)):
        status, output = run(directory, *option)
        assert status == 0, output
        TlsFiles(directory, Role.SCHEDULER)
    status, output = run(directory)
    assert (status, "has an authority already" in output) == (1, True)


def _remove(directory: Path) -> None:
    (directory / "tls.key").unlink()


def _no_pem(directory: Path) -> None:
    (directory / "tls.crt").write_text("certificate")


def _no_roots(directory: Path) -> None:
    (directory / "ca.crt").write_bytes(b"")


def _no_key(directory: Path) -> None:
    (directory / "tls.key").write_bytes((directory / "tls.crt").read_bytes())


def _another_key(directory: Path) -> None:
    _, key = Authority.make().issue(Role.ROUTER)
    (directory / "tls.key").write_bytes(key)


def _issued(days_ago: float) -> Callable[[Path], None]:
    def put(directory: Path) -> None:
        now = datetime.now(UTC) - timedelta(days=days_ago)
        certificate, key = Authority.make().issue(Role.ROUTER, days=1, now=now)
        (directory / "tls.crt").write_bytes(certificate)
        (directory / "tls.key").write_bytes(key)

    return put


BROKEN = [
    (_remove, r"tls_dir: \S+/worker/tls\.key does not exist"),
    (_no_pem, r"tls_dir: \S+/worker/tls\.crt holds no PEM certificate"),
    (_no_roots, r"tls_dir: \S+/worker/ca\.crt holds no PEM certificate"),
    (_no_key, r"tls_dir: \S+/worker/tls\.key holds no PEM key without a password"),
    (_another_key, r"tls_dir: \S+/worker/tls\.key does not match the certificate in tls\.crt"),
    (_issued(days_ago=2), r"tls_dir: \S+/worker/tls\.crt has expired on 20\d\d-\d\d-\d\d"),
    (_issued(days_ago=-2), r"tls_dir: \S+/worker/tls\.crt is valid only from 20\d\d-\d\d-\d\d"),
]


@pytest.mark.parametrize(("break_it", "message"), BROKEN)
def test_files_that_cannot_be_used_are_refused_in_one_line(
    certificates: CertificateDirectory, break_it: Callable[[Path], None], message: str
) -> None:
    break_it(certificates.path / "worker")
    with pytest.raises(ConfigError, match=message):
        TlsFiles(certificates.path, Role.WORKER)


@pytest.mark.parametrize(("break_it", "message"), BROKEN)
def test_files_that_break_later_leave_the_certificate_in_use(
    certificates: CertificateDirectory, break_it: Callable[[Path], None], message: str
) -> None:
    tls = TlsFiles(certificates.path, Role.WORKER)
    before = tls.current()
    with capture_logs() as logs:
        break_it(certificates.path / "worker")
        assert tls.current() is before
        assert tls.current() is before
    (line,) = logs
    assert line["event"] == "certificate_not_loaded"
    assert re.fullmatch(message + ".*", line["error"])
    certificates.renew()
    assert tls.current() is not before, "whole again, it is read"


def test_a_certificate_that_came_too_early_is_used_once_it_is_valid(
    certificates: CertificateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Tomorrow":
            return cls.fromtimestamp(datetime.now(UTC).timestamp() + 86_400, tz)

    tls = TlsFiles(certificates.path, Role.WORKER)
    before = tls.current()
    _issued(days_ago=-0.9)(certificates.path / "worker")
    assert tls.current() is before
    monkeypatch.setattr("quire.security.tls.datetime", Tomorrow)
    assert tls.current() is not before


def test_files_are_looked_at_no_more_often_than_asked(certificates: CertificateDirectory) -> None:
    tls = TlsFiles(certificates.path, Role.ROUTER)
    before = tls.current()
    certificates.renew()
    assert tls.current(max_age_s=3600) is before
    assert tls.current() is not before


def test_a_certificate_in_the_last_third_of_its_life_is_warned_of(
    certificates: CertificateDirectory,
) -> None:
    directory = certificates.path / "router"

    def put(days_ago: float) -> None:
        now = datetime.now(UTC) - timedelta(days=days_ago)
        certificate, key = certificates.authority().issue(Role.ROUTER, days=30, now=now)
        (directory / "tls.crt").write_bytes(certificate)
        (directory / "tls.key").write_bytes(key)

    put(days_ago=19)
    with capture_logs() as logs:
        tls = TlsFiles(certificates.path, Role.ROUTER)
        assert not logs
        put(days_ago=21)
        for _ in range(3):
            tls.current()
    assert [line["event"] for line in logs] == ["certificate_loaded", "certificate_expires"]
    assert logs[1]["days_left"] == pytest.approx(9, abs=0.1)
    assert WARN_EVERY_S == 24 * 3600, "and again tomorrow"
    left_s = tls.certificate_not_after - datetime.now(UTC).timestamp()
    assert left_s == pytest.approx(9 * 86_400, abs=60)


def test_a_client_may_have_roots_alone_a_service_may_not(
    certificates: CertificateDirectory, tmp_path: Path
) -> None:
    roots = tmp_path / "roots"
    roots.mkdir()
    (roots / "ca.crt").write_bytes((certificates.path / "client" / "ca.crt").read_bytes())
    tls = TlsFiles(roots, Role.CLIENT)
    assert tls.current().certificate is None
    assert math.isnan(tls.certificate_not_after)
    with pytest.raises(ConfigError, match=r"tls\.crt does not exist"):
        TlsFiles(roots, Role.WORKER)
