"""How a GPU splits the attention of a step, planned once for all layers with the same window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from worker_svc import ops

if TYPE_CHECKING:
    from worker_svc._C import AttentionPlan


# Of addresses, in bytes, up to which kernels look.
_ALIGNMENT = 16


@dataclass(slots=True)
class _Planned:
    plan: AttentionPlan | None
    arguments: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    is_current: bool = True


class AttentionPlans:
    """A plan for each sliding window that layers have, made again for every step.

    It holds caches, but no queries.

    Args:
        max_seq_len: of plans for a captured graph (see ops.plan_attention); None for others.
        max_query_len: as max_seq_len.
    """

    def __init__(self, max_seq_len: int | None = None, max_query_len: int = 1) -> None:
        self._max_seq_len = max_seq_len
        self._max_query_len = max_query_len
        self._planned: dict[int | None, _Planned] = {}
        self._seq_lens = torch.empty(0, dtype=torch.int32)
        self._query_start_loc = torch.zeros(1, dtype=torch.int32)
        self._block_tables: torch.Tensor | None = None
        self._table_rows: torch.Tensor | None = None

    def begin(
        self,
        seq_lens: torch.Tensor,
        query_start_loc: torch.Tensor,
        block_tables: torch.Tensor | None = None,
        table_rows: torch.Tensor | None = None,
    ) -> None:
        """Start a step: the plans of the last one become invalid.

        Args:
            seq_lens: [num_sequences] int32, on the CPU.
            query_start_loc: [num_sequences + 1] int32, on the CPU.
            block_tables: [rows, max blocks] int32, on the CPU; see ops.plan_attention.
            table_rows: [num_sequences] int64, on the CPU, with block_tables.
        """
        self._seq_lens, self._query_start_loc = seq_lens, query_start_loc
        self._block_tables, self._table_rows = block_tables, table_rows
        for planned in self._planned.values():
            planned.is_current = False

    def get(
        self,
        sliding_window: int | None,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> AttentionPlan | None:
        """Return the plan for layers with this window; see ops.plan_attention.

        Args:
            sliding_window: tokens that a token sees; None for all.
            query: [num_tokens, heads, head_dim].
            key_cache: of a layer; see LayerCache.
            value_cache: as key_cache.
        """
        planned = self._planned.get(sliding_window)
        if planned is None or not planned.is_current:
            arguments = _like(query, key_cache), key_cache, value_cache
            plan = self._make(sliding_window, arguments)
            planned = self._planned[sliding_window] = _Planned(plan, arguments)
        return planned.plan

    @property
    def shared_blocks(self) -> tuple[int, ...]:
        """Of each window's plan, the blocks of the launch for what sequences share; 0 without."""
        plans = (each.plan for each in self._planned.values())
        return tuple(0 if plan is None else plan.shared_blocks for plan in plans)

    @property
    def launches(self) -> tuple[tuple[int, ...], ...]:
        """Of each window's plan, the sizes of its launches; see ops.plan_attention."""
        plans = (each.plan for each in self._planned.values())
        return tuple(() if plan is None else tuple(plan.launches) for plan in plans)

    def make_again(self) -> None:
        """Make all plans again that were asked for so far, for the same tensors."""
        for window, planned in self._planned.items():
            planned.plan = self._make(window, planned.arguments)
            planned.is_current = True

    def _make(
        self, sliding_window: int | None, arguments: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    ) -> AttentionPlan | None:
        before = self._planned.get(sliding_window)
        return ops.plan_attention(
            *arguments,
            self._seq_lens,
            self._query_start_loc,
            block_tables=self._block_tables,
            table_rows=self._table_rows,
            sliding_window=sliding_window,
            max_seq_len=self._max_seq_len,
            max_query_len=self._max_query_len,
            earlier=None if before is None else before.plan,
        )


def _like(query: torch.Tensor, key_cache: torch.Tensor) -> torch.Tensor:
    """Return a tensor for which the same is planned as for a query, over memory of a cache.

    Plans read no elements, and the query itself would keep the activations of which it is a view.
    It is returned where the cache is too small to stand in for it.

    Args:
        query: [num_tokens, heads, head_dim].
        key_cache: of a layer.
    """
    memory = key_cache.as_strided((_span(key_cache),), (1,)).view(torch.uint8)
    # Kernels are chosen by how the query is aligned, too.
    start = (query.data_ptr() - memory.data_ptr()) % _ALIGNMENT
    end = start + _span(query) * query.element_size()
    if end > len(memory):
        return query
    return memory[start:end].view(query.dtype).as_strided(query.shape, query.stride())


def _span(tensor: torch.Tensor) -> int:
    """Return the elements of memory from a tensor's first to its last."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
