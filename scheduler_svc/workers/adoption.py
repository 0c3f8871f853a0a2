"""What the caches of a group still hold when a scheduler takes its workers over."""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.contract.engine_options import CacheOptions
from quire.contract.options import values_of
from quire.contract.workers import CachedBlock, CacheSpec, WorkerMirror


@dataclass(frozen=True, slots=True)
class CacheContents:
    """Blocks whose contents every rank has, each content once, the least recently used first.

    Attributes:
        blocks: of the cache.
        host_blocks: of the host's memory, of contents that the cache does not have.
        num_offered: contents that the rank with the most has.
        last_step_id: the last step that all ranks have run.
    """

    blocks: tuple[CachedBlock, ...] = ()
    host_blocks: tuple[CachedBlock, ...] = ()
    num_offered: int = 0
    last_step_id: int = 0


def common_cache(mirrors: Sequence[WorkerMirror], options: CacheOptions) -> CacheSpec | None:
    """Return the cache that all ranks have, if they have the same and it is of these options."""
    first = mirrors[0].cache
    if first is None or any(mirror.cache != first for mirror in mirrors):
        return None
    is_wanted = values_of(first.options, CacheOptions) == values_of(options, CacheOptions)
    return first if is_wanted else None


def common_contents(mirrors: Sequence[WorkerMirror], *, is_kept: bool = True) -> CacheContents:
    """Return what all ranks agree on, nothing if the caches were not kept.

    A rank reports only what it has computed. So what all report has been computed by the last step
    that all of them have completed, and nothing has taken its place since.

    Args:
        mirrors: of all ranks, at least one.
        is_kept: whether the caches are those that the mirrors describe.
    """
    offered = ({block.digest for block in (*each.blocks, *each.host_blocks)} for each in mirrors)
    num_offered = max(map(len, offered))
    if not is_kept:
        return CacheContents(num_offered=num_offered)
    blocks = _common([mirror.blocks for mirror in mirrors])
    digests = {block.digest for block in blocks}
    host_blocks = _common([mirror.host_blocks for mirror in mirrors])
    return CacheContents(
        blocks,
        tuple(block for block in host_blocks if block.digest not in digests),
        num_offered,
        min(mirror.last_step_id for mirror in mirrors),
    )


def _common(ranks: Sequence[tuple[CachedBlock, ...]]) -> tuple[CachedBlock, ...]:
    """Return the blocks that every rank reports, each content in the place used last."""
    first, *others = ranks
    in_all = set(first).intersection(*others)
    latest = {block.digest: block for block in first if block in in_all}
    return tuple(block for block in first if latest.get(block.digest) is block)
