"""Sequences whose keys and values lie in scattered blocks among slots that must not be read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.kernels.cache_formats import PLAIN, PlainCache
from worker_svc import ops

# A block that no cache has: in a table where no visible key lies.
NO_BLOCK = 2**30


@dataclass(frozen=True, slots=True)
class History:
    """Queries [L, H, D], keys [L, Hkv, D] and values [L, Hkv, Dv] of a sequence's positions.

    Values that are a view of the keys lie in their rows of the cache.
    """

    query: Tensor
    key: Tensor
    value: Tensor

    @classmethod
    def random(
        cls, length: int, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, seed: int
    ) -> "History":
        """Standard normal numbers."""
        rng = torch.Generator().manual_seed(seed)

        def tensor(num_heads: int) -> Tensor:
            return torch.randn(length, num_heads, head_size, generator=rng).to(dtype)

        return cls(tensor(heads), tensor(kv_heads), tensor(kv_heads))

    def with_values(self, value_size: int, *, of_keys: bool) -> "History":
        """Values of another size: the first elements of the keys, or of its own values."""
        rows = self.key if of_keys else self.value.clone()
        return History(self.query, self.key, rows[..., :value_size])

    @property
    def has_values_of_keys(self) -> bool:
        """Whether values are the beginnings of the keys."""
        return self.value.data_ptr() == self.key.data_ptr()


@dataclass(frozen=True, slots=True)
class Span:
    """Positions [begin, end) of a sequence, computed in one call: its last `end - begin` rows."""

    history: History
    begin: int
    end: int


@dataclass(slots=True)
class FixedPlan:
    """A plan that serves batch after batch of as many sequences, up to a length; see ops."""

    max_seq_len: int
    plan: Any = None
    max_query_len: int = 1


def attend(
    spans: Sequence[Span],
    *,
    cache: PlainCache = PLAIN,
    fixed_plan: FixedPlan | None = None,
    block_size: int = 16,
    token_first: bool = False,
    fused_query: bool = False,
    seed: int = 0,
    shared_tokens: int = 0,
    **options: Any,
) -> list[Tensor]:
    """Run paged attention on a batch and return each span's rows [end - begin, H, Dv].

    Blocks are drawn at random from a cache whose other slots hold NaN, and a row beyond the batch
    must stay as it is.

    Args:
        spans: of the batch.
        cache: how keys and values are held.
        fixed_plan: to make again and use; None makes one where there are several spans.
        block_size: tokens of a block.
        token_first: lay blocks out as [BS, Hkv, D] instead of [Hkv, BS, D].
        fused_query: give queries as a view of a wider projection.
        seed: of the blocks' order.
        shared_tokens: spans of one history begin with so many tokens, or fewer, in the same blocks.
        options: further arguments of the operation; `scale` is 1 / sqrt(D) unless given.
    """
    first = spans[0].history
    _, heads, head_size = first.query.shape
    kv_heads, dtype = first.key.shape[1], first.key.dtype
    value_size = first.value.shape[2]
    counts = [-(-span.end // block_size) for span in spans]
    num_blocks = sum(counts) + 3
    shape = (num_blocks, kv_heads, block_size)
    if token_first:
        shape = (num_blocks, block_size, kv_heads)
    caches = [cache.empty((*shape, size), dtype) for size in (head_size, value_size)]
    if first.has_values_of_keys:
        caches[1] = caches[0][..., :value_size]
    if token_first:
        caches = [each.transpose(1, 2) for each in caches]

    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).int()
    tables = torch.full((len(spans), max([*counts, 1]) + 1), NO_BLOCK, dtype=torch.int32)
    window = options.get("sliding_window") or max(span.end for span in spans) + 1
    used = 0
    # Of each history, the row that begins with it first, and the blocks that it has whole.
    leaders: dict[int, tuple[int, range]] = {}
    for row, (span, count) in enumerate(zip(spans, counts, strict=True)):
        first_key = max(0, span.begin + 1 - window)
        whole = range(-(-first_key // block_size), min(shared_tokens, span.end) // block_size)
        leader, known = leaders.setdefault(id(span.history), (row, whole))
        for index in range(count):
            block = int(order[used + index])
            if leader != row and index in known:
                tables[row, index] = tables[leader, index]
                continue
            begin = max(index * block_size, first_key)
            end = min((index + 1) * block_size, span.end)
            if begin >= end or span.begin == span.end:
                continue  # no token attends to it: the table keeps NO_BLOCK
            tables[row, index] = block
            slots = slice(begin - index * block_size, end - index * block_size)
            for is_key, each in zip((True, False), caches, strict=True):
                rows = span.history.key if is_key else span.history.value
                cached = cache.encode(rows[begin:end], is_key=is_key).transpose(0, 1)
                # As bytes: not every type of 8 bits has an assignment.
                each.view(torch.uint8)[block, :, slots] = cached.contiguous().view(torch.uint8)
        used += count

    query = torch.cat([span.history.query[span.begin : span.end] for span in spans])
    query = torch.cat([query, query.new_full((1, heads, head_size), torch.nan)])
    if fused_query:
        wide = query.new_full((len(query), heads + 2 * kv_heads, head_size), torch.nan)
        wide[:, :heads] = query
        query = wide[:, :heads]
    lengths = [span.end - span.begin for span in spans]
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    out = query.new_full((len(query), heads, value_size), 7.0)
    seq_lens = torch.tensor([span.end for span in spans], dtype=torch.int32)
    # A plan, or none, changes nothing.
    plan = None
    if fixed_plan is not None or len(spans) > 1:
        # As a worker has them: with tables of other sequences, in another order.
        rows = torch.arange(len(spans)).flip(0) + 1
        plan = ops.plan_attention(
            query,
            *caches,
            seq_lens,
            starts,
            block_tables=torch.cat([tables[:1], tables.flip(0)]),
            table_rows=rows,
            sliding_window=options.get("sliding_window"),
            max_seq_len=None if fixed_plan is None else fixed_plan.max_seq_len,
            max_query_len=1 if fixed_plan is None else fixed_plan.max_query_len,
            earlier=None if fixed_plan is None else fixed_plan.plan,
        )
    if fixed_plan is not None:
        fixed_plan.plan = plan
    ops.paged_attention(
        out,
        query,
        caches[0],
        caches[1],
        tables,
        seq_lens,
        starts,
        plan=plan,
        **{"scale": head_size**-0.5, **cache.options(kv_heads), **options},
    )
    assert (out[-1] == 7.0).all(), "a row beyond the batch was written"
    return list(out[:-1].split(lengths))
