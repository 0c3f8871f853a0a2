"""The tensor-parallel group: who this rank is, what it owns, and how ranks exchange activations.

Only activations and sampled tokens travel here; orders come from the scheduler. With one rank every
exchange is the identity and torch.distributed is never touched.
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from quire.errors import ModelLoadError, UnavailableError
from worker_svc.hf_config import one_line

RENDEZVOUS_TIMEOUT_S = 60

# Rank 0's own, open as long as its process: the others find it there whenever they come.
_meeting_places: dict[str, TCPStore] = {}


@dataclass(frozen=True, slots=True)
class ParallelGroup:
    """One rank's view of its group.

    Attributes:
        rank: in [0, size).
        size: number of ranks that share each layer.
    """

    rank: int = 0
    size: int = 1

    def part(self, what: str, total: int) -> range:
        """Return the indices of `total` equal items that this rank owns.

        Raises:
            ModelLoadError: `total` cannot be divided; names `what`.
        """
        if total % self.size != 0:
            raise ModelLoadError(
                f"{what} {total} cannot be divided by tensor_parallel_size {self.size}"
            )
        share = total // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks, added in rank order.

        Not gloo's own all-reduce: its ring adds in an order that depends on where a value lies in
        the buffer, so a token's sum would depend on its batch mates.

        Args:
            partial: [rows, features] this rank's summand.
        """
        if self.size == 1:
            return partial
        parts = self._all_gather(partial)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(partial.dtype)

    def all_gather_columns(self, part: torch.Tensor) -> torch.Tensor:
        """Return [rows, size * columns]: every rank's [rows, columns] side by side."""
        if self.size == 1:
            return part
        return torch.cat(self._all_gather(part), dim=-1)

    def broadcast(self, values: torch.Tensor) -> torch.Tensor:
        """Return rank 0's `values` on every rank; all pass a tensor of the same shape and dtype.

        Mutates: `values`, on ranks above 0.
        """
        if self.size > 1:
            dist.broadcast(values, src=0)
        return values

    def _all_gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return parts


def join_group(
    rank: int,
    size: int,
    init_address: str,
    epoch: int = 0,
    device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
) -> ParallelGroup:
    """Meet the other ranks and return the group.

    A process belongs to at most one group at a time; joining a second one leaves the first, and
    ends whatever its other ranks wait for.

    Args:
        rank: in [0, size).
        size: number of ranks.
        init_address: "host:port" where the ranks meet; unused when `size` is 1.
        epoch: ranks meet only those of the same one.
        device: of the activations: NCCL exchanges them between GPUs, Gloo between CPUs.

    Raises:
        UnavailableError: not all ranks came in time.
    """
    leave_group()
    if size > 1:
        try:
            dist.init_process_group(
                "gloo" if device.type == "cpu" else "nccl",
                store=PrefixStore(str(epoch), _meeting_place(rank, init_address)),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=RENDEZVOUS_TIMEOUT_S),
                device_id=None if device.type == "cpu" else device,
            )
        except (RuntimeError, ValueError) as error:
            raise UnavailableError(
                f"rank {rank} of {size} could not meet the others at {init_address}: "
                f"{one_line(error)}"
            ) from error
    return ParallelGroup(rank, size)


def _meeting_place(rank: int, address: str) -> TCPStore:
    if rank == 0 and address in _meeting_places:
        return _meeting_places[address]
    host, _, port = address.rpartition(":")
    store = TCPStore(
        host,
        int(port),
        is_master=rank == 0,
        wait_for_workers=False,
        timeout=timedelta(seconds=RENDEZVOUS_TIMEOUT_S),
    )
    if rank == 0:
        _meeting_places[address] = store
    return store


def leave_group() -> None:
    """Leave the group this process belongs to, if any."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
