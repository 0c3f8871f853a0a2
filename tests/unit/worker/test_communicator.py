"""Ranks meet and exchange tensors over real sockets, on one address, and never wait for ever."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from quire.contract.errors import ConfigError, InvalidRequestError, UnavailableError
from quire.contract.workers import Meeting
from worker_svc.parallel.communicator import ProcessCommunicator, interface_of

CPU = torch.device("cpu")
HOST = "127.0.0.1"
SECRET = bytes(range(32))


def meet(
    ranks: list[ProcessCommunicator], epoch: int = 1, timeout_s: float = 20, address: str = ""
) -> str:
    """Have all ranks join; return where they met."""
    address = address or ranks[0].open_meeting_place(HOST)
    meeting = Meeting(address, HOST, epoch, timeout_s, SECRET)
    with ThreadPoolExecutor(len(ranks)) as pool:
        joining = [
            pool.submit(each.join, rank, len(ranks), meeting) for rank, each in enumerate(ranks)
        ]
        for future in joining:
            future.result()
    return address


def gather(ranks: list[ProcessCommunicator]) -> list[list[torch.Tensor]]:
    """Have each rank pass its number; return what each got."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(
            pool.map(
                lambda pair: pair[1].all_gather(torch.full((2, 3), float(pair[0]))),
                enumerate(ranks),
            )
        )


def make_ranks(size: int) -> list[ProcessCommunicator]:
    return [ProcessCommunicator(CPU) for _ in range(size)]


@pytest.mark.parametrize("size", [2, 3])
def test_gather_and_broadcast(size: int) -> None:
    ranks = make_ranks(size)
    meet(ranks)
    for parts in gather(ranks):
        assert [part[0, 0].item() for part in parts] == list(range(size))
    values = [torch.tensor([rank, 7]) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda pair: pair[0].broadcast(pair[1]), zip(ranks, values, strict=True)))
    assert all(each.tolist() == [0, 7] for each in values)


def test_ranks_meet_again_in_another_epoch() -> None:
    ranks = make_ranks(2)
    address = meet(ranks)
    ranks[1] = ProcessCommunicator(CPU)  # it came back after its death
    assert meet(ranks, epoch=2, address=address) == address
    assert len(gather(ranks)[1]) == 2


def test_a_silent_rank_is_given_up() -> None:
    ranks = make_ranks(2)
    meet(ranks, timeout_s=1)
    with pytest.raises(UnavailableError, match=r"another rank was lost: .*Timed out .* 1000ms"):
        ranks[0].all_gather(torch.zeros(3))


def test_a_rank_that_has_left_is_noticed_at_once() -> None:
    ranks = make_ranks(2)
    meet(ranks, timeout_s=60)
    ranks[1].leave()
    # By its closed connection, not when the time for an exchange is over.
    with pytest.raises(UnavailableError, match=r"another rank was lost: .*closed by peer"):
        ranks[0].all_gather(torch.zeros(3))
    with pytest.raises(UnavailableError, match="has left"):
        ranks[1].all_gather(torch.zeros(3))


def test_a_rank_that_does_not_come_is_not_awaited_for_ever() -> None:
    rank = ProcessCommunicator(CPU)
    meeting = Meeting(rank.open_meeting_place(HOST), HOST, 1, 1, SECRET)
    with pytest.raises(UnavailableError, match=r"rank 0 of 2 could not meet .* within 1 s"):
        rank.join(0, 2, meeting)


def test_a_meeting_place_where_no_process_listens() -> None:
    with pytest.raises(UnavailableError, match="rank 1 of 2 could not meet"):
        ProcessCommunicator(CPU).join(1, 2, Meeting(f"{HOST}:9", HOST, 1, 1, SECRET))
    with pytest.raises(UnavailableError, match="does not listen"):
        ProcessCommunicator(CPU).join(0, 2, Meeting(f"{HOST}:9", HOST, 1, 1, SECRET))


def test_all_sockets_are_bound_to_the_address_given() -> None:
    before = listeners()
    ranks = make_ranks(2)
    meet(ranks)
    new = listeners() - before
    assert len(new) >= 3  # the store and a device for each rank
    assert {address for address, _ in new} <= {"0100007F", "0000000000000000FFFF00000100007F"}


def listeners() -> set[tuple[str, str]]:
    """Return address and port, in hexadecimal, of this process's listening TCP sockets."""
    links = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:
                address, _, port = fields[1].partition(":")
                found.add((address, port))
    return found


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"host: must be an address of this machine, got 192\.0\.2\.1"
    ):
        ProcessCommunicator(CPU).open_meeting_place("192.0.2.1")
    with pytest.raises(ConfigError, match="address of an interface"):
        interface_of("192.0.2.1")
    assert interface_of(HOST) == "lo"


@pytest.mark.parametrize("timeout_s", [0, -1, 3601])
def test_a_timeout_out_of_bounds_is_refused(timeout_s: float) -> None:
    with pytest.raises(InvalidRequestError, match="distributed_timeout_ms"):
        Meeting(timeout_s=timeout_s)
