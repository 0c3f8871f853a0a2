"""Ranks believe only what is signed with the secret of their epoch, whoever else is there."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    TCPStore,
)

from quire.contract.errors import InvalidRequestError, UnavailableError
from quire.contract.workers import Meeting
from worker_svc.parallel import communicator
from worker_svc.parallel.communicator import ProcessCommunicator
from worker_svc.parallel.meeting_place import (
    MeetingPlace,
    SignedStore,
    nccl_store,
    proof_of_rank,
)

HOST = "127.0.0.1"
CPU = torch.device("cpu")
SECRET, OTHER_SECRET = bytes(range(32)), bytes(32)


def meeting(
    address: str = f"{HOST}:1", epoch: int = 1, secret: bytes = SECRET, timeout_s: float = 20
) -> Meeting:
    return Meeting(address, HOST, epoch, timeout_s, secret)


def stranger(address: str) -> Any:
    """Connect to a store as any process can."""
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False)


def only_key(store: Any) -> str:
    """Wait until a store has a key; return it. A store knows its clients' keys and no others."""
    while not (keys := store.list_keys()):
        time.sleep(0.01)
    (key,) = keys
    return str(key)


@pytest.mark.parametrize("value", [b"", b"\0\xff address", "text"])
def test_holders_of_the_secret_read_what_they_wrote(value: bytes | str) -> None:
    inner = HashStore()
    SignedStore(inner, meeting()).set("0/1", value)
    reader = SignedStore(inner, meeting())
    assert reader.check(["0/1"])
    assert not reader.check(["0/2"])
    reader.wait(["0/1"], timedelta(seconds=1))
    assert reader.get("0/1") == (value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize(
    "forged",
    [
        lambda signed, other: b"",
        lambda signed, other: b"a value without a signature, longer than one would be",
        lambda signed, other: signed[:-1] + bytes([signed[-1] ^ 1]),
        lambda signed, other: bytes([signed[0] ^ 1]) + signed[1:],
        lambda signed, other: signed + b"\0",
        lambda signed, other: other,
    ],
    ids=["empty", "unsigned", "changed value", "changed signature", "longer", "of another key"],
)
def test_a_value_that_no_holder_of_the_secret_wrote_is_refused(forged: Any) -> None:
    inner: Any = HashStore()
    store = SignedStore(inner, meeting())
    store.set("0/0", b"address of rank 0")
    name = only_key(inner)
    store.set("0/1", b"address of rank 1")
    other = next(key for key in inner.list_keys() if key != name)
    inner.set(name, forged(inner.get(name), inner.get(other)))
    with pytest.raises(
        UnavailableError, match=r"signed with the secret of epoch 1, got another at key 0/0"
    ):
        store.get("0/0")
    assert store.get("0/1") == b"address of rank 1"


def test_values_of_another_epoch_or_secret_are_worth_nothing() -> None:
    """A recorded value is put where the same rank of a later meeting looks for it."""
    for before, now in [
        (meeting(epoch=1), meeting(epoch=2)),
        (meeting(secret=OTHER_SECRET), meeting()),
    ]:
        old: Any = HashStore()
        SignedStore(old, before).set("0/0", b"address")
        new: Any = HashStore()
        store = SignedStore(new, now)
        store.set("0/0", b"of now")
        name = only_key(new)
        assert name != only_key(old), "where it is cannot be told from outside"
        new.set(name, old.get(only_key(old)))
        with pytest.raises(UnavailableError, match="must be signed"):
            store.get("0/0")


def test_a_stranger_who_overwrites_an_address_is_noticed_and_the_next_epoch_forms() -> None:
    ranks = [ProcessCommunicator(CPU) for _ in range(2)]
    address = ranks[0].open_meeting_place(HOST)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ranks[0].join, 0, 2, meeting(address, timeout_s=2))
        attacker = stranger(address)
        name = only_key(attacker)
        attacker.set(name, "where the stranger listens")
        with pytest.raises(UnavailableError, match=r"got another at key 0/0; a process that is no"):
            ranks[1].join(1, 2, meeting(address, timeout_s=2))
        with pytest.raises(UnavailableError):
            first.result()
        # Not so much as the keys of the next epoch are known before.
        attacker.set(name.replace("1/", "2/", 1), "where the stranger listens")
        joining = [
            pool.submit(rank.join, number, 2, meeting(address, 2, OTHER_SECRET))
            for number, rank in enumerate(ranks)
        ]
        for each in joining:
            each.result()
        parts = pool.map(lambda rank: rank.all_gather(torch.ones(2)), ranks)
        assert [len(each) for each in parts] == [2, 2]


def test_a_stranger_in_place_of_a_rank_is_noticed_before_a_tensor_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has got as far as a connection of the library, and shows a proof of its own."""
    ranks = [ProcessCommunicator(CPU) for _ in range(2)]
    address = ranks[0].open_meeting_place(HOST)
    proofs = proof_of_rank

    def show(own: Meeting, rank: int, size: int) -> bytes:
        """Return what rank 1 cannot know: it has the connection and not the secret."""
        return proofs(own if own.host == HOST else meeting(secret=OTHER_SECRET), rank, size)

    monkeypatch.setattr(communicator, "proof_of_rank", show)
    guest = Meeting(address, "localhost", 1, 20, SECRET)
    with ThreadPoolExecutor(2) as pool:
        joining = [
            pool.submit(ranks[0].join, 0, 2, meeting(address)),
            pool.submit(ranks[1].join, 1, 2, guest),
        ]
        with pytest.raises(UnavailableError, match=r"rank 1 of 2: must hold the secret of epoch 1"):
            joining[0].result()
        assert joining[1].exception() is not None
    with pytest.raises(UnavailableError, match="has left its group"):
        ranks[0].all_gather(torch.zeros(2))


def test_proofs_differ_by_rank_size_epoch_and_secret() -> None:
    proofs = {
        proof_of_rank(each, rank, size)
        for each in (meeting(), meeting(epoch=2), meeting(secret=OTHER_SECRET))
        for rank, size in ((0, 2), (1, 2), (0, 3))
    }
    assert len(proofs) == 9
    assert {len(each) for each in proofs} == {32}


def test_nccl_is_handed_what_rank_0_has_written() -> None:
    """A stand-in for NCCL: rank 0 writes an id and waits for the others, who read it."""
    place = MeetingPlace()
    where = meeting(place.open(HOST))
    identity = bytes(range(128))

    def connect(rank: int) -> bytes:
        store = place.store(0, where) if rank == 0 else MeetingPlace().store(rank, where)
        with nccl_store(store, rank, where) as local:
            if rank == 0:
                local.set("0", identity)
                # A connection of its own: one that waits keeps others of its calls waiting.
                SignedStore(stranger(where.address), where).wait(["1", "2"])
            else:
                store.set(str(rank), "came")
            got: bytes = local.get("0")
            return got

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(connect, range(3))) == [identity] * 3


def test_a_forged_id_does_not_reach_nccl() -> None:
    place = MeetingPlace()
    where = meeting(place.open(HOST))
    attacker = stranger(where.address)
    with nccl_store(place.store(0, where), 0, where) as local:
        local.set("0", bytes(128))
        attacker.set(only_key(attacker), "0\0the id of another group")
        with (
            pytest.raises(UnavailableError, match="must be signed"),
            nccl_store(MeetingPlace().store(1, where), 1, where),
        ):
            pass


@pytest.mark.parametrize(
    ("address", "num_bytes", "wanted"),
    [("host:1", 0, "32 with an address"), ("host:1", 31, "32 with"), ("", 32, "0 without one")],
)
def test_a_meeting_without_a_secret_is_refused(address: str, num_bytes: int, wanted: str) -> None:
    with pytest.raises(
        InvalidRequestError,
        match=f"distributed_secret: number of bytes must be {wanted}.*, got {num_bytes}",
    ):
        Meeting(address, secret=bytes(num_bytes))


def test_a_secret_is_not_printed() -> None:
    assert "secret" not in repr(meeting())
