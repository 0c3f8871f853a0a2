"""Gloo's devices, and whether the installed torch can encrypt what they send, found out by trying.

Gloo speaks TLS only where torch was built so (USE_GLOO_WITH_OPENSSL), which the CPU package of PyPI
is not. Which transport it takes it reads from the environment once, at the first device of a
process, and keeps to it. So the trials run in processes of their own:

    python -m worker_svc.parallel.gloo_tls RANK FILE [DIRECTORY]
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from quire.security.tls import CERTIFICATE, KEY, ROOTS

_HOST = "127.0.0.1"
_TRANSPORT = "GLOO_DEVICE_TRANSPORT"
# Between two processes that import torch meanwhile; a meeting that must fail may take all of it.
_MEETING_S = 20.0
_PROCESS_S = 60.0
_EXIT_NO_DEVICE, _EXIT_NO_MEETING = 3, 4

# What the first device of this process took; empty before.
_used_transports: set[str] = set()


def gloo_device(host: str, tls_directory: Path | None = None) -> Any:
    """Return a device of Gloo that listens at an address of this machine.

    Args:
        host: the address.
        tls_directory: of ca.crt, tls.crt and tls.key; None speaks in the clear.

    Raises:
        RuntimeError: `host` is no such address, Gloo has no TLS, or this process has had a device
            of the other kind.
    """
    wanted = "TCP" if tls_directory is None else "TCP_TLS"
    if others := _used_transports - {wanted}:
        # Gloo would take the first again, whatever the environment says by now.
        raise RuntimeError(f"this process has {others.pop()} for ranks, not {wanted}: restart it")
    os.environ[_TRANSPORT] = wanted
    if tls_directory is not None:
        for name, file in (("PKEY", KEY), ("CERT", CERTIFICATE), ("CA_FILE", ROOTS)):
            os.environ[f"{_TRANSPORT}_TCP_TLS_{name}"] = str(tls_directory / file)
    _used_transports.add(wanted)
    gloo: Any = dist.ProcessGroupGloo  # its type stub lacks the member
    return gloo.create_device(hostname=host)


def gloo_group(store: Store, rank: int, size: int, device: Any, timeout: timedelta) -> Any:
    """Return a group of ranks that exchange tensors over a device, once all are connected.

    Raises:
        RuntimeError: they did not come in time, or were refused.
    """
    # Made directly: the set-up of torch.distributed has no parameter for the address to bind.
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices, options._timeout = [device], timeout
    return gloo(store, rank, size, options)


@cache
def gloo_tls_fault() -> str | None:
    """Return why Gloo cannot be trusted with TLS; None if it can. Tried once in each process.

    It can if two ranks with certificates of one authority meet and exchange a tensor, and neither a
    rank with a certificate of another authority nor one that speaks in the clear can meet them.
    """
    version = torch.__version__
    with tempfile.TemporaryDirectory(prefix="quire-gloo-tls-") as directory:
        own, foreign = Path(directory) / "own", Path(directory) / "foreign"
        for each in (own, foreign):
            each.mkdir()
            write_probe_files(each)
        # Quick where there is none: one process, which imports torch.
        try:
            outcome = subprocess.run(
                _command(0, Path(directory) / "unused", own, "--device-only"),
                capture_output=True,
                text=True,
                check=False,
                timeout=_PROCESS_S,
            )
        except subprocess.TimeoutExpired:
            return f"in torch {version} trying it took more than {_PROCESS_S:g} s"
        if outcome.returncode != 0:
            last = (outcome.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"torch {version} was built without it ({last})"
        trials = [
            _Trial(own, own, "ranks with certificates of one authority cannot meet", meets=True),
            _Trial(own, foreign, "a certificate of another authority is accepted", meets=False),
            _Trial(own, None, "a rank that speaks in the clear is accepted", meets=False),
        ]
        with ThreadPoolExecutor(len(trials)) as pool:
            results = list(pool.map(_can_meet, trials))
        wrong = [
            trial.otherwise
            for trial, met in zip(trials, results, strict=True)
            if met != trial.meets
        ]
        return f"in torch {version} {wrong[0]}" if wrong else None


@dataclass(frozen=True, slots=True)
class _Trial:
    """A meeting of two ranks, and what must come of it.

    Attributes:
        first: certificates of rank 0; None speaks in the clear.
        second: those of rank 1.
        otherwise: what is wrong if something else comes of it.
        meets: whether they must be able to exchange a tensor.
    """

    first: Path | None
    second: Path | None
    otherwise: str
    meets: bool


def _can_meet(trial: _Trial) -> bool:
    """Return whether two processes, each a rank, can exchange a tensor."""
    with tempfile.TemporaryDirectory(prefix="quire-gloo-store-") as directory:
        ranks = [
            subprocess.Popen(
                _command(rank, Path(directory) / "store", files),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank, files in enumerate((trial.first, trial.second))
        ]
        try:
            return any(rank.wait(_PROCESS_S) == 0 for rank in ranks)
        except subprocess.TimeoutExpired:
            return False
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def _command(rank: int, store: Path, files: Path | None, *options: str) -> list[str]:
    last = [] if files is None else [str(files)]
    return [
        sys.executable,
        "-m",
        "worker_svc.parallel.gloo_tls",
        *options,
        str(rank),
        str(store),
        *last,
    ]


def _take_part(rank: int, store: Path, files: Path | None) -> bool:
    """Be a rank of a trial; return whether it could exchange a tensor with the other."""
    parts, timeout = [torch.empty(2), torch.empty(2)], timedelta(seconds=_MEETING_S)
    try:
        group = gloo_group(FileStore(str(store), 2), rank, 2, gloo_device(_HOST, files), timeout)
        group.allgather([parts], [torch.full((2,), float(rank))]).wait(timeout)
    except RuntimeError:
        return False
    return [each.tolist() for each in parts] == [[0.0, 0.0], [1.0, 1.0]]


def write_probe_files(directory: Path) -> None:
    """Write ca.crt, tls.crt and tls.key: a certificate that is its own authority, for an hour."""
    # Not at the top: a worker without other ranks needs none of it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    serial, now = x509.random_serial_number(), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"quire probe {serial:x}"[:48])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    for file, content in ((ROOTS, certificate), (CERTIFICATE, certificate), (KEY, private)):
        (directory / file).write_bytes(content)


def _main(arguments: list[str]) -> int:
    """Run a trial's process; return its exit status."""
    is_device_only = arguments[0] == "--device-only"
    rank, store, *files = arguments[is_device_only:]
    directory = Path(files[0]) if files else None
    if is_device_only:
        try:
            gloo_device(_HOST, directory)
        except RuntimeError as error:
            print(str(error).splitlines()[0], file=sys.stderr)
            return _EXIT_NO_DEVICE
        return 0
    return 0 if _take_part(int(rank), Path(store), directory) else _EXIT_NO_MEETING


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
