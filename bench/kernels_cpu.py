"""Paged attention beside a linear read and torch's SDPA, dense layers in int8 beside bf16's.

Machines share their memory with neighbours, so a rate alone says little: each case alternates the
kernel with a linear read of the same cache and prints the ratio of the best of both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from worker_svc import ops
from worker_svc.layers.int8_linear import Int8Linear
from worker_svc.layers.packed_linear import PackedLinear

NUM_KV_HEADS = 8
BLOCK_SIZE = 16
DENSE_WEIGHTS = 60_000_000


def seconds(body: Callable[[], object]) -> float:
    begin = time.perf_counter()
    body()
    return time.perf_counter() - begin


def best_of_alternating(repeats: int, *bodies: Callable[[], object]) -> list[float]:
    """Return the shortest time of each body, running them in turn."""
    best = [float("inf")] * len(bodies)
    for _ in range(repeats):
        for i, body in enumerate(bodies):
            best[i] = min(best[i], seconds(body))
    return best


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Sequences of one length whose blocks are scattered over the cache."""

    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor

    @classmethod
    def random(cls, num_seqs: int, length: int, head_size: int, dtype: torch.dtype) -> PagedBatch:
        """Fill caches that hold exactly these sequences."""
        blocks_per_seq = -(-length // BLOCK_SIZE)
        num_blocks = num_seqs * blocks_per_seq
        caches = []
        for _ in range(2):
            cache = torch.empty(num_blocks, NUM_KV_HEADS, BLOCK_SIZE, head_size, dtype=dtype)
            ops.advise_huge_pages(cache)
            caches.append(cache.normal_())
        tables = torch.randperm(num_blocks).int().view(num_seqs, blocks_per_seq)
        return cls(caches[0], caches[1], tables, torch.full((num_seqs,), length, dtype=torch.int32))

    @property
    def bytes_read(self) -> int:
        """Bytes of keys and values that one decode step of all sequences has to read."""
        per_token = 2 * NUM_KV_HEADS * self.key_cache.shape[3] * self.key_cache.element_size()
        return int(self.seq_lens.sum()) * per_token

    def as_int8(self) -> PagedBatch:
        """The same sequences over int8 caches."""
        num_blocks, _, _, head_size = self.key_cache.shape
        slots = torch.arange(num_blocks * BLOCK_SIZE)
        shape = (num_blocks, NUM_KV_HEADS, BLOCK_SIZE, head_size + 4)
        caches = [torch.empty(shape, dtype=torch.int8) for _ in range(2)]
        for cache in caches:
            ops.advise_huge_pages(cache)
        rows = [
            cache.transpose(1, 2).reshape(len(slots), NUM_KV_HEADS, head_size)
            for cache in (self.key_cache, self.value_cache)
        ]
        ops.reshape_and_cache(rows[0], rows[1], caches[0], caches[1], slots)
        return PagedBatch(caches[0], caches[1], self.block_tables, self.seq_lens)

    def read_linearly(self) -> None:
        """Read both caches front to back."""
        ops.stream_read(self.key_cache)
        ops.stream_read(self.value_cache)

    def attend(self, query: Tensor, query_len: int) -> Callable[[], None]:
        """Return the kernel's call for the last query_len tokens of every sequence."""
        out = torch.empty_like(query)
        starts = torch.arange(len(self.seq_lens) + 1, dtype=torch.int32) * query_len

        def run() -> None:
            ops.paged_attention(
                out,
                query,
                self.key_cache,
                self.value_cache,
                self.block_tables,
                self.seq_lens,
                starts,
                query.shape[2] ** -0.5,
            )

        return run

    def sdpa(self, query: Tensor, query_len: int) -> Callable[[], Tensor]:
        """Torch's attention on a contiguous copy of the keys and values."""
        num_seqs, head_size = len(self.seq_lens), query.shape[2]
        length = int(self.seq_lens[0])
        keys, values = (
            cache[self.block_tables.long()]
            .transpose(1, 2)
            .reshape(num_seqs, NUM_KV_HEADS, -1, head_size)
            for cache in (self.key_cache, self.value_cache)
        )
        rows = query.view(num_seqs, query_len, -1, head_size).transpose(1, 2)
        mask = torch.ones(query_len, length, dtype=torch.bool).tril(length - query_len)
        causal = query_len == length
        return lambda: F.scaled_dot_product_attention(
            rows,
            keys,
            values,
            attn_mask=None if query_len == 1 or causal else mask,
            is_causal=causal and query_len > 1,
            enable_gqa=True,
        )


def bench_decode(args: argparse.Namespace, dtype: torch.dtype) -> None:
    batch = PagedBatch.random(args.num_seqs, args.length, args.head_size, dtype)
    as_int8 = batch.as_int8()
    gigabytes = batch.bytes_read / 1e9
    print(
        f"decode, {dtype}, {args.num_seqs} x {args.length} tokens, {NUM_KV_HEADS} kv heads of"
        f" {args.head_size}, KV {gigabytes:.2f} GB, shuffled blocks of {BLOCK_SIZE}, {ops.isa()}"
    )
    for group in args.groups:
        query = torch.randn(args.num_seqs, group * NUM_KV_HEADS, args.head_size).to(dtype)
        read, attend, attend_int8 = best_of_alternating(
            args.repeats, batch.read_linearly, batch.attend(query, 1), as_int8.attend(query, 1)
        )
        line = (
            f"  G={group}: {gigabytes / attend:5.1f} GB/s, {read / attend:4.0%} of a linear read's"
            f" {gigabytes / read:5.1f} GB/s; int8 cache {attend / attend_int8:.2f} times as fast,"
            f" {as_int8.bytes_read / 1e9 / attend_int8:5.1f} GB/s"
        )
        if args.sdpa:
            sdpa = best_of_alternating(2, batch.sdpa(query, 1))[0]
            line += f"; torch SDPA on contiguous KV {gigabytes / sdpa:5.1f} GB/s"
        print(line, flush=True)


def bench_prefill(args: argparse.Namespace, dtype: torch.dtype) -> None:
    for query_len, length in ((512, 512), (2048, 2048), (256, 4096)):
        batch = PagedBatch.random(1, length, args.head_size, dtype)
        for group in args.groups:
            heads = group * NUM_KV_HEADS
            query = torch.randn(query_len, heads, args.head_size).to(dtype)
            pairs = query_len * (length - query_len) + query_len * (query_len + 1) // 2
            gigaflop = 4 * pairs * heads * args.head_size / 1e9
            bodies: list[Callable[[], object]] = [batch.attend(query, query_len)]
            if args.sdpa:
                bodies.append(batch.sdpa(query, query_len))
            times = best_of_alternating(max(2, args.repeats // 2), *bodies)
            line = (
                f"  {query_len} of {length} tokens, G={group}: {gigaflop / times[0]:5.0f} GFLOP/s"
            )
            if args.sdpa:
                line += f"; torch SDPA {gigaflop / times[1]:5.0f} GFLOP/s"
            print(line, flush=True)


def bench_dense(args: argparse.Namespace, dtype: torch.dtype) -> None:
    """Dense layers in int8 beside those of the type, over weights beyond the caches."""
    for in_features, out_features in ((2048, 2048), (4096, 11008)):
        count = -(-DENSE_WEIGHTS // (in_features * out_features))
        weights = [torch.randn(out_features, in_features).to(dtype) for _ in range(count)]
        layers = [[kind(each, None) for each in weights] for kind in (PackedLinear, Int8Linear)]
        for rows in (1, 8, 64):
            x = torch.randn(rows, in_features).to(dtype)
            bodies = [partial(_apply, each, x) for each in layers]
            times = best_of_alternating(args.repeats, *bodies)
            size = count * in_features * out_features
            print(
                f"  {in_features} x {out_features}, M={rows}: "
                f"{size * dtype.itemsize / times[0] / 1e9:.1f} GB/s, "
                f"{2e-9 * rows * size / times[0]:.0f} GFLOP/s; int8 {times[0] / times[1]:.2f} "
                f"times as fast, {size / times[1] / 1e9:.1f} GB/s, "
                f"{2e-9 * rows * size / times[1]:.0f} GOP/s",
                flush=True,
            )


def _apply(layers: list[PackedLinear | Int8Linear], x: Tensor) -> None:
    for layer in layers:
        layer(x)


def bench_rotary(args: argparse.Namespace, dtype: torch.dtype) -> None:
    """Rotary embedding and the write to the cache in one pass, against one after the other."""
    heads, size = 4 * NUM_KV_HEADS, args.head_size
    angles = torch.rand(4096, size // 2)
    cos_sin_cache = torch.cat([angles.cos(), angles.sin()], 1)
    shape = (1024, NUM_KV_HEADS, BLOCK_SIZE, size)
    caches = [torch.zeros(shape, dtype=dtype) for _ in range(2)]
    for num_tokens in (1, 64, 2048):
        qkv = torch.randn(num_tokens, heads + 2 * NUM_KV_HEADS, size).to(dtype)
        query, key, value = (
            qkv[:, :heads],
            qkv[:, heads : heads + NUM_KV_HEADS],
            qkv[:, -NUM_KV_HEADS:],
        )
        positions = torch.randint(4096, (num_tokens,))
        slots = torch.randperm(1024 * BLOCK_SIZE)[:num_tokens]

        io = (*caches, slots)
        fused = partial(
            ops.rotary_and_cache, positions, query, key, value, cos_sin_cache, True, *io
        )
        in_turn = (
            partial(ops.rotary_embedding, positions, query, key, cos_sin_cache, True),
            partial(ops.reshape_and_cache, key, value, *io),
        )
        repeats = max(10, 20_000 // num_tokens)
        times = best_of_alternating(repeats, fused, *in_turn)
        print(
            f"  {num_tokens} tokens: {1e6 * times[0]:.1f} us, {times[0] / sum(times[1:]):.2f} of"
            f" {1e6 * sum(times[1:]):.1f} us in turn",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-seqs", type=int, default=16)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--num-threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-sdpa", dest="sdpa", action="store_false")
    parser.add_argument("--no-prefill", dest="prefill", action="store_false")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.num_threads)
    ops.set_num_threads(args.num_threads)
    for name in args.dtypes:
        dtype = getattr(torch, name)
        print(f"rotary_and_cache, {dtype}, {4 * NUM_KV_HEADS} heads, {NUM_KV_HEADS} kv heads")
        bench_rotary(args, dtype)
        print(f"dense layers, {dtype}")
        bench_dense(args, dtype)
        bench_decode(args, dtype)
        if args.prefill:
            print(f"prefill, {dtype}, causal")
            bench_prefill(args, dtype)


if __name__ == "__main__":
    main()
