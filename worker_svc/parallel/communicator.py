"""How the ranks of a group meet and exchange tensors: Gloo between CPUs, NCCL between GPUs.

Ranks exchange only activations and sampled tokens; orders come from the scheduler. Every socket is
bound to this worker's own address, never to all interfaces, and every exchange has a timeout.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from quire.contract.errors import ConfigError, UnavailableError
from quire.contract.workers import DEFAULT_DISTRIBUTED_TIMEOUT_S, Meeting
from worker_svc.loading.hf_config import one_line

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


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

    def store(self, rank: int, meeting: Meeting) -> TCPStore:
        """Return the store at a meeting's address; on rank 0, its own.

        Raises:
            UnavailableError: rank 0 does not listen there.
        """
        if rank == 0:
            if meeting.address not in self._stores:
                raise UnavailableError(f"rank 0 does not listen at {meeting.address}")
            return self._stores[meeting.address]
        host, _, port = meeting.address.rpartition(":")
        return TCPStore(
            host,
            int(port),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=meeting.timeout_s),
        )


class ProcessCommunicator:
    """This process's link to the other ranks; layers keep it while it joins group after group.

    Args:
        device: device of the tensors: NCCL exchanges them between GPUs, Gloo between CPUs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._place = MeetingPlace()
        self._group: Any = None  # a backend of torch.distributed

    def open_meeting_place(self, host: str) -> str:
        """Listen for the other ranks at an address of this machine; return "host:port".

        Raises:
            ConfigError: `host` is no address of this machine.
        """
        return self._place.open(host)

    def join(self, rank: int, size: int, meeting: Meeting) -> None:
        """Leave the current group and meet the other ranks of an epoch.

        Raises:
            UnavailableError: not all ranks came in time.
        """
        self.leave()
        if size == 1:
            return
        make = _gloo_group if self._device.type == "cpu" else _nccl_group
        try:
            store = PrefixStore(str(meeting.epoch), self._place.store(rank, meeting))
            self._group = make(store, rank, size, meeting, self._device)
        except (RuntimeError, ValueError) as error:
            raise UnavailableError(
                f"rank {rank} of {size} could not meet the others at {meeting.address} within "
                f"{meeting.timeout_s:g} s: {one_line(error)}"
            ) from error

    def leave(self) -> None:
        """Leave the group, if any; the other ranks' exchanges with this one then fail."""
        group, self._group = self._group, None
        if group is not None and self._device.type != "cpu":
            # A kernel of NCCL that waits for a dead rank would spin for ever.
            group.abort()

    def all_gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """See Communicator."""
        group = self._require_group()
        parts = [torch.empty_like(part) for _ in range(group.size())]
        self._wait(lambda: group.allgather([parts], [part.contiguous()]))
        return parts

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """See Communicator; the order is that of the library's algorithm."""
        total = partial.contiguous()
        self._wait(lambda: self._require_group().allreduce([total]))
        return total

    def broadcast(self, values: torch.Tensor) -> None:
        """See Communicator."""
        self._wait(lambda: self._require_group().broadcast([values]))

    def _require_group(self) -> Any:
        if self._group is None:
            raise UnavailableError("this rank has left its group")
        return self._group

    def _wait(self, start: Callable[[], Any]) -> None:
        try:
            start().wait()
        except RuntimeError as error:
            raise UnavailableError(f"another rank was lost: {one_line(error)}") from error


def _gloo_group(
    store: PrefixStore, rank: int, size: int, meeting: Meeting, device: torch.device
) -> Any:
    # Made directly: the set-up of torch.distributed has no parameter for the address to bind.
    gloo: Any = dist.ProcessGroupGloo  # its type stub lacks the members below
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=meeting.host)]
    options._timeout = timedelta(seconds=meeting.timeout_s)
    return gloo(store, rank, size, options)


def _nccl_group(
    store: PrefixStore, rank: int, size: int, meeting: Meeting, device: torch.device
) -> Any:
    # "=" means exactly this name: without it NCCL takes a prefix.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface_of(meeting.host)}")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=meeting.timeout_s)
    group = dist.ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(device)
    return group


def interface_of(host: str) -> str:
    """Return the name of the network interface that has an IPv4 address.

    Raises:
        ConfigError: no interface of this machine has this address.
    """
    address = socket.gethostbyname(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            # struct ifreq: 16 bytes of name, then a sockaddr_in whose address is at offset 4.
            if address.startswith("127.") and name == "lo":
                return name
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise ConfigError(f"host: must be an address of an interface of this machine, got {host}")
