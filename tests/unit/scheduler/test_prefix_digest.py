"""What routers receive of a prefix cache; that it equals the cache is in test_block_manager."""

from hashlib import sha256

from quire.contract.block_hashes import short_hash
from quire.contract.sessions import PrefixDigestDelta
from scheduler_svc.blocks.prefix_digest import MAX_REPORTED_BLOCKS, PrefixDigest


def name(number: int) -> bytes:
    return sha256(str(number).encode()).digest()


def test_only_some_depths_are_reported() -> None:
    digest = PrefixDigest()
    for depth in range(1, 14):
        digest.add(name(depth), depth)
    assert digest.keys == {short_hash(name(depth)) for depth in (1, 2, 3, 4, 6, 8, 12)}


def test_what_comes_and_goes_between_two_reports_is_in_neither() -> None:
    digest = PrefixDigest()
    digest.add(name(1), 1)
    digest.remove(name(1))
    assert digest.take_delta() == PrefixDigestDelta((), ())
    digest.add(name(1), 1)
    assert digest.take_delta() == PrefixDigestDelta((short_hash(name(1)),), ())
    digest.remove(name(1))
    digest.add(name(1), 1)
    assert digest.take_delta() == PrefixDigestDelta((), ())
    digest.clear()
    assert digest.take_delta() == PrefixDigestDelta((), (short_hash(name(1)),))


def test_its_size_is_bounded() -> None:
    digest = PrefixDigest()
    for number in range(MAX_REPORTED_BLOCKS + 5):
        digest.add(name(number), 1)
    assert len(digest.keys) == MAX_REPORTED_BLOCKS
    # One that was not reported may go unnoticed; then there is room for another.
    digest.remove(name(MAX_REPORTED_BLOCKS + 1))
    assert len(digest.keys) == MAX_REPORTED_BLOCKS
    digest.remove(name(0))
    digest.add(name(MAX_REPORTED_BLOCKS + 2), 1)
    assert short_hash(name(MAX_REPORTED_BLOCKS + 2)) in digest.keys
