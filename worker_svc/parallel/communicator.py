"""How the ranks of a group meet and exchange tensors: Gloo between CPUs, NCCL between GPUs.

GPUs of one machine that reach each other's memory make small sums there (see peer_sums).

Ranks exchange only activations and sampled tokens; orders come from the scheduler. Every socket is
bound to this worker's own address, never to all interfaces, and every exchange has a timeout. The
first exchange of a group is each rank's proof that it holds the secret of the epoch.
"""

import fcntl
import hmac
import os
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from quire.contract.errors import ConfigError, UnavailableError
from quire.contract.workers import Meeting
from quire.observe.log import get_logger
from worker_svc.loading.hf_config import one_line
from worker_svc.parallel.gloo_tls import gloo_device, gloo_group
from worker_svc.parallel.link_security import LinkSecurity
from worker_svc.parallel.meeting_place import (
    MeetingPlace,
    nccl_store,
    proof_of_rank,
)
from worker_svc.parallel.peer_sums import PeerSums, PeerSumsOfProcess

_ABANDON_POLL = timedelta(seconds=0.1)
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface

log = get_logger()


class ProcessCommunicator:
    """This process's link to the other ranks; layers keep it while it joins group after group.

    Args:
        device: device of the tensors: NCCL exchanges them between GPUs, Gloo between CPUs.
        security: how it may be linked to ranks on other machines.

    Attributes:
        is_waiting: whether the model's thread waits for other ranks.
    """

    def __init__(self, device: torch.device, security: LinkSecurity | None = None) -> None:
        self._device = device
        self._security = security or LinkSecurity()
        self._place = MeetingPlace()
        self._group: Any = None  # a backend of torch.distributed
        self._is_abandoned = False
        # Gloo cannot end an exchange: its group lives until that has failed.
        self._abandoned: list[tuple[Any, Any]] = []
        self._peer_sums = PeerSumsOfProcess()
        self._sums: PeerSums | None = None  # of the group
        self.is_waiting = False

    def open_meeting_place(self, host: str) -> str:
        """Listen for the other ranks at an address of this machine; return "host:port".

        Raises:
            ConfigError: `host` is no address of this machine.
        """
        return self._place.open(host)

    def join(self, rank: int, size: int, meeting: Meeting) -> None:
        """Leave the current group and meet the other ranks of an epoch.

        Raises:
            ConfigError: ranks on other machines must not be sent tensors in the clear.
            UnavailableError: not all ranks came in time, or a stranger came in place of one.
        """
        self.leave()
        self._is_abandoned = False
        self._abandoned = [each for each in self._abandoned if not each[1].is_completed()]
        if size == 1:
            return
        make = self._gloo_group if self._device.type == "cpu" else self._nccl_group
        try:
            self._group = make(rank, size, meeting)
        except (RuntimeError, ValueError) as error:
            raise UnavailableError(
                f"rank {rank} of {size} could not meet the others at {meeting.address} within "
                f"{meeting.timeout_s:g} s: {one_line(error)}"
            ) from error
        try:
            self._check_proofs(rank, size, meeting)
            if self._device.type != "cpu":
                self._sums = self._peer_sums.open(rank, size, meeting.timeout_s, self._bytes_of_all)
                if self._is_abandoned:  # meanwhile
                    self.abandon()
        except UnavailableError:
            self.leave()
            raise

    def _check_proofs(self, rank: int, size: int, meeting: Meeting) -> None:
        """Have all ranks prove to each other that they hold the secret of the epoch.

        Libraries accept whoever connects first in place of a rank.
        """
        proofs = self._bytes_of_all(proof_of_rank(meeting, rank, size))
        for other, shown in enumerate(proofs):
            if not hmac.compare_digest(shown, proof_of_rank(meeting, other, size)):
                raise UnavailableError(
                    f"rank {other} of {size}: must hold the secret of epoch {meeting.epoch}, got "
                    "another proof; a process that is no rank of this group took its place"
                )

    def _bytes_of_all(self, own: bytes) -> list[bytes]:
        """Return the bytes of each rank for those of this one, all of one length."""
        sent = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(self._device)
        return [bytes(each.cpu().tolist()) for each in self.all_gather(sent)]

    def leave(self) -> None:
        """Leave the group, if any; the other ranks' exchanges with this one then fail.

        On a GPU no graph may hold an exchange any more.
        """
        group, self._group = self._group, None
        sums, self._sums = self._sums, None
        if sums is not None:
            sums.memory.abandon()
        if group is not None and self._device.type != "cpu":
            # A kernel of NCCL that waits for a dead rank would spin for ever.
            group.abort()
        if sums is not None:
            # Waits for what the device does: nothing waits for a rank there now.
            self._peer_sums.leave(sums)

    def abandon(self) -> None:
        """Fail an exchange that runs between CPUs, and all to come until the next `join`.

        May be called from any thread. A rank that is stopped keeps its sockets: without this the
        others would wait for it as long as the group's timeout. Sums in memory of peers fail, too.
        """
        self._is_abandoned = True
        sums = self._sums
        if sums is not None:
            sums.memory.abandon()

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

    def sum_in_order(self, partial: torch.Tensor) -> torch.Tensor | None:
        """See Communicator."""
        sums = self._sums
        if sums is None or not sums.takes(partial):
            return None
        self.is_waiting = True
        try:
            return sums.sum(partial)
        finally:
            self.is_waiting = False

    def failure(self) -> torch.Tensor | None:
        """See Communicator."""
        return None if self._sums is None else self._sums.failure(self._device)

    def broadcast(self, values: torch.Tensor) -> None:
        """See Communicator."""
        self._wait(lambda: self._require_group().broadcast([values]))

    def _gloo_group(self, rank: int, size: int, meeting: Meeting) -> Any:
        directory = self._security.gloo_directory(meeting.host)
        device = gloo_device(meeting.host, directory)
        store = self._place.store(rank, meeting)
        encryption = "none" if directory is None else "tls"
        log.info("ranks_meet", rank=rank, size=size, library="gloo", encryption=encryption)
        return gloo_group(store, rank, size, device, timedelta(seconds=meeting.timeout_s))

    def _nccl_group(self, rank: int, size: int, meeting: Meeting) -> Any:
        self._security.warn_of_nccl(meeting.host)
        # "=" means exactly this name: without it NCCL takes a prefix.
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface_of(meeting.host)}")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=meeting.timeout_s)
        with nccl_store(self._place.store(rank, meeting), rank, meeting) as store:
            log.info("ranks_meet", rank=rank, size=size, library="nccl", encryption="none")
            group = dist.ProcessGroupNCCL(store, rank, size, options)
            group.eager_connect_single_device(self._device)
        return group

    def _require_group(self) -> Any:
        if self._group is None:
            raise UnavailableError("this rank has left its group")
        return self._group

    def _wait(self, start: Callable[[], Any]) -> None:
        self.is_waiting = True
        try:
            work = start()
            if self._device.type == "cpu":
                self._wait_unless_abandoned(work)
            work.wait()
        except RuntimeError as error:
            raise UnavailableError(f"another rank was lost: {one_line(error)}") from error
        finally:
            self.is_waiting = False

    def _wait_unless_abandoned(self, work: Any) -> None:
        while True:
            try:
                work.wait(_ABANDON_POLL)
            except RuntimeError:
                if work.is_completed():
                    return
            else:
                return
            if self._is_abandoned:
                self._abandoned.append((self._group, work))
                raise UnavailableError("this rank leaves its group: another was lost")


def interface_of(host: str) -> str:
    """Return the name of the network interface that has an address.

    Raises:
        ConfigError: no interface of this machine has this address.
    """
    if ":" in host:
        return _interface_of_ipv6(host)
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


def _interface_of_ipv6(host: str) -> str:
    packed = socket.inet_pton(socket.AF_INET6, host).hex()
    # A line for each address: proc_net_if_inet6(5).
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        address, *_, name = line.split()
        if address == packed:
            return name
    raise ConfigError(f"host: must be an address of an interface of this machine, got {host}")
