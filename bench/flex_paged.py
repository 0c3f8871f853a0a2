"""Decode attention by torch's flex_attention over its own pages, to compare with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

PAGE_SIZE = 128


def flex_decode(
    query: Tensor, keys: list[Tensor], values: list[Tensor], *, compiled: bool = True
) -> Callable[[], Tensor]:
    """Return what computes the attention of one query for each sequence, [N, H, D].

    Args:
        query: [N, H, D].
        keys: of each sequence, [length, Hkv, D].
        values: as keys.
        compiled: whether torch is to compile it for the device; else it runs as it is written.
    """
    from torch.nn.attention.experimental import _paged_attention

    lengths = torch.tensor([len(each) for each in keys], device=query.device)
    num_pages = sum(-(-len(each) // PAGE_SIZE) for each in keys)
    library: Any = _paged_attention  # not annotated
    pages = library.PagedAttention(num_pages, PAGE_SIZE, len(keys), str(query.device))
    shape = (1, keys[0].shape[1], num_pages * PAGE_SIZE, query.shape[2])
    caches = torch.zeros((2, *shape), dtype=query.dtype, device=query.device)
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        where = torch.tensor([index], device=query.device)
        pages.reserve(where, lengths[index : index + 1])
        positions = torch.arange(len(key), device=query.device)[None]
        heads_first = (each.transpose(0, 1)[None] for each in (key, value))
        pages.assign(where, positions, *heads_first, *caches)

    def sees(batch: Tensor, head: Tensor, row: Tensor, position: Tensor) -> Tensor:
        return position < lengths[batch]

    mask = flex.create_block_mask(
        sees,
        len(keys),
        None,
        1,
        int(lengths.max()),
        device=str(query.device),
        BLOCK_SIZE=(PAGE_SIZE, PAGE_SIZE),
    )
    paged_mask = pages.convert_logical_block_mask(mask, kv_len=lengths)
    attend: Any = torch.compile(flex.flex_attention) if compiled else flex.flex_attention
    rows = query.unsqueeze(2)
    return lambda: attend(rows, *caches, block_mask=paged_mask, enable_gqa=True).squeeze(2)
