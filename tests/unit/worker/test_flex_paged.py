"""The attention that benchmarks compare with is attention."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from bench.flex_paged import flex_decode


def test_pages_of_torch_hold_the_same_sequences() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(length: int, heads: int) -> torch.Tensor:
        return torch.randn(length, heads, 64, generator=generator)

    lengths = (300, 5, 129)
    query = random(len(lengths), 8)
    keys, values = ([random(length, 2) for length in lengths] for _ in range(2))
    found = flex_decode(query, keys, values, compiled=False)()
    for row, key, value, out in zip(query, keys, values, found, strict=True):
        heads = (row[:, None], key.transpose(0, 1), value.transpose(0, 1))
        expected = scaled_dot_product_attention(*heads, enable_gqa=True)[:, 0]
        torch.testing.assert_close(out, expected)
