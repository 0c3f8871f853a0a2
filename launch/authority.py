"""A certificate authority for one cluster: ECDSA P-256, one certificate for each role.

Its directory holds what each service is given, under the names that cert-manager uses:

    DIR/authority/                 the authority's key (ca.key), its certificate and trusted roots
    DIR/router/, scheduler/, worker/, client/, operator/    ca.crt, tls.crt, tls.key

It is meant for development, tests and small installations. A cluster that has an authority already
needs nothing of this: any certificates do that carry the roles of `quire.security.roles` as DNS
names.
"""

import ipaddress
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quire.contract.errors import ConfigError
from quire.security.roles import Role

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
DEFAULT_DAYS = 90
MAX_DAYS = 3650
AUTHORITY_DAYS = 3650
# Clocks of different machines are not the same.
CLOCK_SKEW = timedelta(minutes=5)

_AUTHORITY = "authority"


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority: its own certificate, and the key with which it signs."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, now: datetime | None = None) -> "Authority":
        """Return a new authority with a key of its own."""
        now = now or datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        serial = x509.random_serial_number()
        # A name of its own: while two authorities are trusted, a chain must lead to one of them.
        name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"Quire authority {serial:040x}"[:48])]
        )
        builder = (
            _builder(name, name, key.public_key(), serial, now, timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    def issue(
        self,
        role: str,
        hosts: Sequence[str] = (),
        days: float = DEFAULT_DAYS,
        now: datetime | None = None,
    ) -> tuple[bytes, bytes]:
        """Make a key, and sign a certificate for it.

        Args:
            role: first DNS name of the certificate.
            hosts: further names and IP addresses that it is for.
            days: how long it is valid.
            now: from when it is valid, but for the difference of clocks.

        Returns:
            Certificate and key, PEM.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(role), *map(_general_name, dict.fromkeys(hosts))]
        builder = (
            _builder(
                x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)]),
                self.certificate.subject,
                key.public_key(),
                x509.random_serial_number(),
                now or datetime.now(UTC),
                timedelta(days=days),
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        certificate = builder.sign(self.key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(serial)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"--host: {host!r} is neither a DNS name nor an IP address") from None


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


class CertificateDirectory:
    """The certificates of a cluster as files. Services read them again when they change.

    An authority is replaced in three steps, between which every service has to have read what the
    step before wrote: `trust_new_authority`, `renew`, `forget_old_authorities`.

    Args:
        path: need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._authority = path / _AUTHORITY

    def create(self, hosts: Sequence[str] = (), days: float = DEFAULT_DAYS) -> None:
        """Make an authority, and a certificate of it for each role.

        Raises:
            ConfigError: there is an authority already, a host is no host, or the directory cannot
                be written.
        """
        if self._exists:
            raise ConfigError(
                f"{self.path} has an authority already: --renew makes new certificates of it, "
                "--new-authority begins to replace it"
            )
        for host in hosts:
            _general_name(host)
        authority = Authority.make()
        self._write_roots([authority.certificate])
        self._issue_all(authority, (*LOCAL_HOSTS, *hosts), days)
        # Last, since a directory with an authority counts as made.
        self._save_authority(authority)

    def renew(self, hosts: Sequence[str] = (), days: float = DEFAULT_DAYS) -> None:
        """Make new certificates and keys for all roles, for the hosts of the old ones and `hosts`.

        Raises:
            ConfigError: there is no authority, or its files cannot be used.
        """
        authority = self.authority()
        self._write_roots(self._roots())
        self._issue_all(authority, (*self._hosts(), *hosts), days)

    def trust_new_authority(self) -> None:
        """Make a new authority that everybody trusts beside the old one; its certificates follow.

        Raises:
            ConfigError: there is no authority, or its files cannot be used.
        """
        roots = self._roots()
        authority = Authority.make()
        # Trust comes first: no peer may be shown a certificate that it cannot check.
        self._write_roots([authority.certificate, *roots])
        self._save_authority(authority)

    def forget_old_authorities(self) -> None:
        """Trust the newest authority alone.

        Raises:
            ConfigError: there is no authority, its files cannot be used, or a role still has a
                certificate of an older one.
        """
        authority = self.authority()
        for role in Role:
            issuer = _load(self.path / role.directory / "tls.crt").issuer
            if issuer != authority.certificate.subject:
                raise ConfigError(
                    f"{self.path / role.directory / 'tls.crt'} is of an older authority: "
                    "--renew first, and give every service the new certificates"
                )
        self._write_roots([authority.certificate])

    @property
    def _exists(self) -> bool:
        return (self._authority / "ca.key").exists()

    def _issue_all(self, authority: Authority, hosts: Sequence[str], days: float) -> None:
        for role in Role:
            certificate, key = authority.issue(role, hosts, days)
            directory = self.path / role.directory
            # Between the two a reader finds a pair that does not match, and keeps what it has.
            _write(directory / "tls.key", key, 0o600)
            _write(directory / "tls.crt", certificate, 0o644)

    def _hosts(self) -> list[str]:
        """Return the hosts that certificates were made for, without the roles."""
        certificate = _load(self.path / Role.ROUTER.directory / "tls.crt")
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names if name.value not in set(Role)]

    def _save_authority(self, authority: Authority) -> None:
        _write(self._authority / "ca.crt", _pem(authority.certificate), 0o644)
        _write(self._authority / "ca.key", _key_pem(authority.key), 0o600)
        self._authority.chmod(0o700)

    def authority(self) -> Authority:
        """Return the newest authority.

        Raises:
            ConfigError: there is none, or its files cannot be used.
        """
        if not self._exists:
            raise ConfigError(f"{self.path} has no authority: `quire certs` without options first")
        path = self._authority / "ca.key"
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be used as a key: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{path}: is no key of an elliptic curve")
        certificate = _load(self._authority / "ca.crt")
        if certificate.public_key() != key.public_key():
            raise ConfigError(f"{path}: does not match ca.crt beside it")
        return Authority(certificate, key)

    def _roots(self) -> list[x509.Certificate]:
        """Return the authorities that are trusted now, the newest first."""
        self.authority()
        path = self._authority / "trusted.crt"
        try:
            return x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be used as certificates: {error}") from error

    def _write_roots(self, roots: Sequence[x509.Certificate]) -> None:
        pem = b"".join(map(_pem, roots))
        _write(self._authority / "trusted.crt", pem, 0o644)
        for role in Role:
            _write(self.path / role.directory / "ca.crt", pem, 0o644)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be used as a certificate: {error}") from error


def _write(path: Path, content: bytes, mode: int) -> None:
    """Put `content` in the place of a file, at once, never readable by more than `mode` says.

    The new file belongs to whom the old one did, so that root can renew what services of other
    users read.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            with suppress(FileNotFoundError, PermissionError):
                old = path.stat()
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
