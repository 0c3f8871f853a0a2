"""Where ranks find each other: a key-value store in the process of rank 0, whose values are signed.

Whoever reaches the store's port can read and write it. So a value counts only with a signature
under the secret of its epoch, which the scheduler draws and sends to its own workers alone.
"""

import hashlib
import hmac
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from quire.contract.errors import ConfigError, UnavailableError
from quire.contract.workers import DEFAULT_DISTRIBUTED_TIMEOUT_S, Meeting

_SIGNATURE_BYTES = hashlib.sha256().digest_size
_NCCL_KEY = "nccl"
_NCCL_POLL_S = 0.005


class MeetingPlace:
    """Where rank 0 waits for the others: a key-value store in its process, bound to one address."""

    def __init__(self) -> None:
        self._stores: dict[str, TCPStore] = {}
        self._address_of_host: dict[str, str] = {}

    def open(self, host: str) -> str:
        """Listen at a free port of `host`, unless this was done before; return "host:port".

        Raises:
            ConfigError: `host` is no address of this machine.
        """
        if host not in self._address_of_host:
            try:
                family, kind, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
                listener = socket.socket(family, kind)
                listener.bind(where)
                listener.listen()
            except OSError as error:
                raise ConfigError(
                    f"host: must be an address of this machine, got {host}: {error.strerror}; "
                    "name each worker by an address of its own machine"
                ) from error
            port = listener.getsockname()[1]
            # The store gets a bound socket: by itself it would bind to all interfaces.
            self._stores[f"{host}:{port}"] = TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=DEFAULT_DISTRIBUTED_TIMEOUT_S),
                master_listen_fd=listener.detach(),
            )
            self._address_of_host[host] = f"{host}:{port}"
        return self._address_of_host[host]

    def store(self, rank: int, meeting: Meeting) -> "SignedStore":
        """Return the store at a meeting's address, for values signed with the meeting's secret.

        Raises:
            UnavailableError: rank 0 does not listen there.
        """
        if rank == 0:
            if meeting.address not in self._stores:
                raise UnavailableError(f"rank 0 does not listen at {meeting.address}")
            store = self._stores[meeting.address]
        else:
            host, _, port = meeting.address.rpartition(":")
            store = TCPStore(
                host,
                int(port),
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=meeting.timeout_s),
            )
        return SignedStore(store, meeting)


class SignedStore(Store):
    """The values of one meeting in a store that others can reach.

    Keys get a name that only the holders of the secret can tell in advance, and values a signature
    that is valid for their key, of their epoch.

    Args:
        store: the store of rank 0.
        meeting: whose secret signs.
    """

    def __init__(self, store: Store, meeting: Meeting) -> None:
        super().__init__()
        name = _sign(meeting, "name").hex()
        # Their stubs know neither values of bytes nor all methods.
        self._store: Any = PrefixStore(f"{meeting.epoch}/{name}", store)
        self._meeting = meeting

    def set(self, key: str, value: bytes | str) -> None:
        """Set a signed value."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._store.set(key, _sign(self._meeting, "value", key.encode(), content) + content)

    def get(self, key: str) -> bytes:
        """Return a value, once it is there.

        Raises:
            UnavailableError: no holder of the secret has written it.
            RuntimeError: it did not come in time.
        """
        found: bytes = self._store.get(key)
        signature, content = found[:_SIGNATURE_BYTES], found[_SIGNATURE_BYTES:]
        expected = _sign(self._meeting, "value", key.encode(), content)
        if not hmac.compare_digest(signature, expected):
            raise UnavailableError(
                f"rendezvous {self._meeting.address}: values must be signed with the secret of "
                f"epoch {self._meeting.epoch}, got another at key {key}; a process that is no rank "
                "of this group writes there"
            )
        return content

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have a value, whoever wrote it.

        Raises:
            RuntimeError: they did not come in time.
        """
        self._store.wait(keys, timeout or timedelta(seconds=self._meeting.timeout_s))

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have a value, whoever wrote it."""
        there: bool = self._store.check(keys)
        return there

    def has_extended_api(self) -> bool:
        """Return that there is nothing but the methods above."""
        return False


def proof_of_rank(meeting: Meeting, rank: int, size: int) -> bytes:
    """Return 32 bytes that none but the holders of a meeting's secret know for a rank."""
    return _sign(meeting, "rank", str(rank).encode(), str(size).encode())


@contextmanager
def nccl_store(store: SignedStore, rank: int, meeting: Meeting) -> Iterator[HashStore]:
    """Give NCCL a store of this process, and hand on what rank 0 writes while NCCL connects.

    NCCL keeps its store and looks at it from threads of its own as long as it lives, so it is given
    one in which neither a stranger nor Python takes part.

    Raises:
        UnavailableError: no holder of the secret has written what rank 0 should have.
        RuntimeError: it did not come in time.
    """
    local: Any = HashStore()
    local.set_timeout(timedelta(seconds=meeting.timeout_s))
    if rank > 0:
        key, _, value = store.get(_NCCL_KEY).partition(b"\0")
        local.set(key.decode(), value)
        yield local
        return
    is_over = threading.Event()

    def hand_on() -> None:
        # The one value that rank 0 writes before it waits for the others: the id of the group.
        while not is_over.is_set():
            if keys := local.list_keys():
                store.set(_NCCL_KEY, keys[0].encode() + b"\0" + local.get(keys[0]))
                return
            is_over.wait(_NCCL_POLL_S)

    thread = threading.Thread(target=hand_on, name="nccl-id", daemon=True)
    thread.start()
    try:
        yield local
    finally:
        is_over.set()
        thread.join()


def _sign(meeting: Meeting, purpose: str, *parts: bytes) -> bytes:
    """Return the HMAC of parts under a meeting's secret, for one purpose in one epoch."""
    mac = hmac.new(meeting.secret, f"quire {purpose} {meeting.epoch}".encode(), hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "little") + part)
    return mac.digest()
