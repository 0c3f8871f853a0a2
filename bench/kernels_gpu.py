"""Decode attention on a GPU against its memory, and other kernels measured in the same process.

Prints a line for each case: time, bytes of keys and values over time, and that as a share of what a
copy reaches on the same device; "float8" is our kernel over caches of e4m3. FlashInfer is compared
with where it is installed, torch's flex_attention at one group of heads. Then attention of prompts
against torch's over contiguous keys, and linear layers by the invariance rule against torch's,
which keep no such rule.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.flashinfer_decode import flashinfer_decode
from bench.flex_paged import flex_decode
from worker_svc import ops

BLOCK_SIZE = 16
HEAD_SIZE = 128
COPY_BYTES = 2**32
# Name: lengths of the sequences, key/value heads.
CASES = {
    "64 x 4k": ([4096] * 64, 8),
    "16 x 4k": ([4096] * 16, 8),
    "8 x 32k": ([32768] * 8, 8),
    "1 x 128k": ([131072], 8),
    "1 x 128k + 63 x 1k": ([131072, *[1024] * 63], 8),
    "4 x 32k + 60 x 512": ([*[32768] * 4, *[512] * 60], 8),
    "mixed": ([512, 1024, 2048, 4096, 8192, 16384, 300, 50] * 4, 8),
}
GROUPS = (1, 4, 8)
# Rows of a prompt or chunk, and tokens of its sequence with them.
PROMPTS = ((2048, 2048), (8192, 8192), (2048, 34816))
PROMPT_HEADS = (8, 4)  # key/value heads, and heads of a group
# To compile it takes long.
FLEX_GROUP = 4
# (in_features, out_features) of Llama-3-8B: QKV, output, gate and up, down, vocabulary.
LINEAR_SHAPES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256))
LINEAR_ROWS = (1, 8, 64, 256, 2048)
# Weights that one measurement goes round, so that they come from memory and not from its cache.
LINEAR_WEIGHT_BYTES = 2**29
# The first version keeps the logits of a whole context in shared memory.
V1_MAX_LENGTH = 40_000


def microseconds(body: Callable[[], object], repeats: int = 20) -> float:
    """Return the median time on the device of one call, over several rounds of calls."""
    body()
    rounds: list[float] = []
    new_event: Any = torch.cuda.Event  # not annotated
    for _ in range(7):
        start, end = (new_event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            body()
        end.record()
        end.synchronize()
        rounds.append(1e3 * start.elapsed_time(end) / repeats)
    return statistics.median(rounds)


def memory_rates() -> dict[str, float]:
    """Return bytes per second, read and written, of a copy, and read of a sum."""
    source = torch.empty(COPY_BYTES // 2, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    words = source.view(torch.int64)
    copied = 2 * source.numel() / (1e-6 * microseconds(lambda: target.copy_(source)))
    read = source.numel() / (1e-6 * microseconds(words.sum))
    return {"copy": copied, "read": read}


@dataclass(frozen=True, slots=True)
class Decode:
    """The last query tokens of each sequence, one by default, over scattered blocks."""

    query: Tensor
    caches: tuple[Tensor, Tensor]
    tables: Tensor
    lengths: list[int]
    rows: int = 1

    @classmethod
    def random(
        cls, lengths: list[int], kv_heads: int, group: int, dtype: torch.dtype, rows: int = 1
    ) -> Decode:
        """Fill caches that hold exactly these sequences."""
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        shape = (sum(counts), kv_heads, BLOCK_SIZE, HEAD_SIZE)
        keys, values = (torch.empty(shape, dtype=dtype, device="cuda").normal_() for _ in range(2))
        order = torch.randperm(sum(counts), dtype=torch.int32)
        tables = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        used = 0
        for row, count in enumerate(counts):
            tables[row, :count] = order[used : used + count]
            used += count
        tokens = len(lengths) * rows
        query = torch.randn(tokens, kv_heads * group, HEAD_SIZE, device="cuda").to(dtype)
        return cls(query, (keys, values), tables.cuda(), lengths, rows)

    def as_float8(self) -> Decode:
        """The same sequences over caches of e4m3."""
        keys, values = (cache.to(torch.float8_e4m3fn) for cache in self.caches)
        return Decode(self.query, (keys, values), self.tables, self.lengths, self.rows)

    @property
    def bytes_read(self) -> int:
        """Bytes of keys and values."""
        keys = self.caches[0]
        return 2 * sum(self.lengths) * keys.shape[1] * HEAD_SIZE * keys.element_size()

    def ours(self) -> Callable[[], None]:
        """The kernel that serves."""
        out = torch.empty_like(self.query)
        seq_lens = torch.tensor(self.lengths, dtype=torch.int32)
        starts = self.rows * torch.arange(len(self.lengths) + 1, dtype=torch.int32)
        plan = ops.plan_attention(self.query, *self.caches, seq_lens, starts)
        on_device = seq_lens.cuda(), starts.cuda()
        return lambda: ops.paged_attention(
            out, self.query, *self.caches, self.tables, *on_device, HEAD_SIZE**-0.5, plan=plan
        )

    def seed(self, version: int) -> Callable[[], None]:
        """The first kernels of the field, on a cache of their layout."""
        kernels: Any = importlib.import_module("worker_svc._C")
        out = torch.empty_like(self.query)
        keys, values = self.caches
        x = 16 // keys.element_size()
        keys = keys.view(*keys.shape[:3], -1, x).permute(0, 1, 3, 2, 4).contiguous()
        values = values.transpose(2, 3).contiguous()
        seq_lens = torch.tensor(self.lengths, dtype=torch.int32).cuda()
        return lambda: kernels.paged_attention_v1(
            *(out, self.query, keys, values, self.tables, seq_lens),
            *(HEAD_SIZE**-0.5, None, max(self.lengths), version == 2),
        )

    def flashinfer(self) -> Callable[[], object] | None:
        """FlashInfer's paged decode on tensor cores; None where it is not installed."""
        return flashinfer_decode(self.query, *self.caches, self.tables, self.lengths)

    def flex(self) -> Callable[[], object] | None:
        """Torch's flex_attention over pages of its own; None, and why, where it does not run."""
        keys, values = (
            [cache.new_empty(each, cache.shape[1], HEAD_SIZE).normal_() for each in self.lengths]
            for cache in self.caches
        )
        try:
            body = flex_decode(self.query, keys, values)
            body()
        except Exception as error:  # a compiler's many ways to fail
            print(f"flex_attention: not measured: {error!r}"[:300], file=sys.stderr)
            return None
        return body


def bench_case(
    name: str, group: int, dtype: torch.dtype, copy_rate: float, *, with_flex: bool
) -> dict[str, Any]:
    """Measure one case; rates are of keys and values, shares those of a copy."""
    lengths, kv_heads = CASES[name]
    decode = Decode.random(lengths, kv_heads, group, dtype)
    bodies: dict[str, Callable[[], object]] = {"ours": decode.ours(), "v2": decode.seed(2)}
    if max(lengths) <= V1_MAX_LENGTH:
        bodies["v1"] = decode.seed(1)
    if (other := decode.flashinfer()) is not None:
        bodies["flashinfer"] = other
    if with_flex and group == FLEX_GROUP and (flex := decode.flex()) is not None:
        bodies["flex"] = flex
    times = {kernel: microseconds(body) for kernel, body in bodies.items()}
    rates = {kernel: decode.bytes_read / (1e-6 * us) for kernel, us in times.items()}
    float8 = decode.as_float8()
    times["float8"] = microseconds(float8.ours())
    rates["float8"] = float8.bytes_read / (1e-6 * times["float8"])
    return {
        "case": name,
        "group": group,
        "dtype": str(dtype).removeprefix("torch."),
        "us": times,
        "share_of_copy": {kernel: rate / copy_rate for kernel, rate in rates.items()},
    }


def print_case(found: dict[str, Any]) -> None:
    """Print the line of a case."""
    columns = "  ".join(
        f"{kernel} {us:8.1f} us {found['share_of_copy'][kernel]:4.0%}"
        for kernel, us in found["us"].items()
    )
    print(f"{found['case']:>9}  G={found['group']}  {found['dtype']}  {columns}", flush=True)


def bench_prompt(rows: int, length: int) -> dict[str, Any]:
    """Measure the last rows of a sequence; torch's kernel only where they are all of it."""
    kv_heads, group = PROMPT_HEADS
    prompt = Decode.random([length], kv_heads, group, torch.bfloat16, rows)
    bodies: dict[str, Callable[[], object]] = {"ours": prompt.ours()}
    if rows == length:
        shape = (1, kv_heads * group, length, HEAD_SIZE)
        query, keys, values = (torch.randn(shape, device="cuda").bfloat16() for _ in range(3))

        def torchs() -> Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, is_causal=True
            )

        bodies["torch"] = torchs
    pairs = sum(range(length - rows + 1, length + 1))
    operations = 4 * HEAD_SIZE * kv_heads * group * pairs
    times = {kernel: microseconds(body, 5) for kernel, body in bodies.items()}
    rates = {kernel: 1e-6 * operations / us for kernel, us in times.items()}
    return {"rows": rows, "length": length, "us": times, "tflops": rates}


def print_prompt(found: dict[str, Any]) -> None:
    """Print the line of a prompt."""
    columns = "  ".join(
        f"{kernel} {us:8.1f} us {found['tflops'][kernel]:4.0f} TFLOP/s"
        for kernel, us in found["us"].items()
    )
    print(f"prompt, {found['rows']} rows of {found['length']} tokens  {columns}", flush=True)


def bench_linear(in_features: int, out_features: int, copy_rate: float) -> list[dict[str, Any]]:
    """Measure a layer at each number of rows; weights over time as a share of a copy's rate."""
    weight_bytes = 2 * in_features * out_features
    copies = max(1, LINEAR_WEIGHT_BYTES // weight_bytes)
    weights = [
        torch.randn(out_features, in_features, device="cuda").bfloat16() for _ in range(copies)
    ]
    cases = []
    for rows in LINEAR_ROWS:
        x = torch.randn(rows, in_features, device="cuda").bfloat16()
        out = torch.empty(rows, out_features, dtype=x.dtype, device="cuda")

        def ours(x: Tensor = x, out: Tensor = out) -> None:
            for weight in weights:
                ops.linear(out, x, weight, None)

        def torchs(x: Tensor = x) -> None:
            for weight in weights:
                torch.nn.functional.linear(x, weight)

        times = {
            name: microseconds(body, 5) / copies
            for name, body in (("ours", ours), ("torch", torchs))
        }
        cases.append(
            {
                "in_features": in_features,
                "out_features": out_features,
                "rows": rows,
                "us": times,
                "share_of_copy": weight_bytes / (1e-6 * times["ours"]) / copy_rate,
                "tflops": 2e-6 * rows * in_features * out_features / times["ours"],
            }
        )
    return cases


def print_linear(found: dict[str, Any]) -> None:
    """Print the line of a layer at a number of rows."""
    times = found["us"]
    print(
        f"linear {found['in_features']:5} x {found['out_features']:6}  M={found['rows']:4}  "
        f"ours {times['ours']:8.1f} us {found['share_of_copy']:4.0%} {found['tflops']:4.0f} TFLOP/s"
        f"  torch {times['torch']:8.1f} us  ratio {times['torch'] / times['ours']:.2f}",
        flush=True,
    )


def main() -> int:
    """Print every case, and all of it as JSON where --json says; 1 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="file to write")
    parser.add_argument(
        "--without-flex", action="store_true", help="leave out flex_attention, which is compiled"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 1
    rates = memory_rates()
    print(
        f"copy {rates['copy'] / 1e12:.2f} TB/s (read and written), read {rates['read'] / 1e12:.2f}"
    )
    figures: dict[str, Any] = {"memory": rates, "cases": [], "prompts": [], "linear": []}

    def keep(kind: str, found: dict[str, Any]) -> None:
        """Add a case to what is written so far: a run may be cut short."""
        figures[kind].append(found)
        torch.cuda.empty_cache()
        if args.json:
            unfinished = Path(f"{args.json}.new")
            unfinished.write_text(json.dumps(figures, indent=1))
            unfinished.rename(args.json)

    for name in CASES:
        for group in GROUPS:
            case = bench_case(
                name, group, torch.bfloat16, rates["copy"], with_flex=not args.without_flex
            )
            print_case(case)
            keep("cases", case)
    for shape in PROMPTS:
        case = bench_prompt(*shape)
        print_prompt(case)
        keep("prompts", case)
    for shape in LINEAR_SHAPES:
        for case in bench_linear(*shape, rates["copy"]):
            print_linear(case)
            keep("linear", case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
