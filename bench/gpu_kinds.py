"""Kernels of some kinds of models on a GPU, each beside what its bytes take.

`python -m bench.gpu_kinds` measures latent attention, sequences that share a prefix, mixtures of
experts, layers of 8 and 4 bits, and sampling. A share is what a copy of as many bytes takes on the
same device, over what the kernel takes. bench.kernels_gpu measures what all models have.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.kernels_gpu import HEAD_SIZE, Decode, memory_rates, microseconds
from worker_svc import ops
from worker_svc.layers.activation import gated_activation
from worker_svc.layers.device_experts import DeviceExperts
from worker_svc.layers.expert_routing import ExpertRouting
from worker_svc.layers.expert_weights import WholeExperts

Figures = dict[str, Any]
Case = tuple[Figures, Callable[[], object]]

LATENT_SIZE, VALUE_SIZE, BLOCK_SIZE = 576, 512, 64
LATENT_SCALE = 192**-0.5
LATENT_HEADS = (16, 32, 128)
KV_HEADS = 8
# Sequences, tokens that all begin with, and tokens of each in all.
SHARED = ((64, 2048, 2304), (16, 8192, 8448))
# Qwen3-30B-A3B: experts, of a row, hidden size, features inside an expert.
NUM_EXPERTS, TOP_K, HIDDEN, INSIDE = 128, 8, 2048, 768
EXPERT_ROWS = (1, 16, 64, 256, 2048)
IN_FEATURES, OUT_FEATURES, GROUP_SIZE = 4096, 28672, 128
LINEAR_ROWS = (1, 16, 64, 256)
# Round that many layers one measurement goes, so that weights come from memory.
NUM_LAYERS = 8
VOCAB_SIZE = 128256
SAMPLED_ROWS = (1, 64, 256)
SAMPLING = {"greedy": (0.0, 0, 1.0), "temperature": (1.0, 0, 1.0), "top_k_top_p": (1.0, 50, 0.9)}


def _normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda").normal_()


def _latent(num_seqs: int, length: int, heads: int, rows: int = 1) -> Callable[[], None]:
    """Return a call of latent attention: the last rows of each sequence, of whole blocks."""
    num_blocks = num_seqs * length // BLOCK_SIZE
    cache = _normal(num_blocks, 1, BLOCK_SIZE, LATENT_SIZE)
    tables = torch.randperm(num_blocks, dtype=torch.int32).view(num_seqs, -1).cuda()
    query = _normal(num_seqs * rows, heads, LATENT_SIZE)
    out = query.new_empty(*query.shape[:2], VALUE_SIZE)
    seq_lens = torch.full((num_seqs,), length, dtype=torch.int32)
    starts = rows * torch.arange(num_seqs + 1, dtype=torch.int32)
    caches = cache, cache[..., :VALUE_SIZE]
    plan = ops.plan_attention(query, *caches, seq_lens, starts)
    on_device = seq_lens.cuda(), starts.cuda()
    return lambda: ops.paged_attention(
        out, query, *caches, tables, *on_device, LATENT_SCALE, plan=plan
    )


def latent_cases() -> Iterator[Case]:
    """Decode of 64 sequences of 4,096 tokens, and a prompt."""
    for heads in LATENT_HEADS:
        num_bytes = 64 * 4096 * LATENT_SIZE * 2
        yield {"heads": heads, "rows": 1, "bytes": num_bytes}, _latent(64, 4096, heads)
    for heads in LATENT_HEADS[::2]:
        operations = 2 * (LATENT_SIZE + VALUE_SIZE) * heads * sum(range(1, 2049))
        yield (
            {"heads": heads, "rows": 2048, "operations": operations},
            _latent(1, 2048, heads, rows=2048),
        )


def _decode(decode: Decode, *, shares: bool) -> tuple[Tensor, Callable[[], None]]:
    """Return what is written, and a call that reads what sequences share once, or for each."""
    seq_lens = torch.tensor(decode.lengths, dtype=torch.int32)
    starts = torch.arange(len(seq_lens) + 1, dtype=torch.int32)
    plan = ops.plan_attention(
        *(decode.query, *decode.caches, seq_lens, starts),
        block_tables=decode.tables.cpu() if shares else None,
        table_rows=torch.arange(len(seq_lens)) if shares else None,
    )
    out = torch.empty_like(decode.query)
    on_device = decode.tables, seq_lens.cuda(), starts.cuda()

    def body() -> None:
        ops.paged_attention(
            *(out, decode.query, *decode.caches, *on_device, HEAD_SIZE**-0.5), plan=plan
        )

    return out, body


def shared_cases() -> Iterator[Case]:
    """Sequences with 8 key/value heads of 128 and 4 query heads each, that begin alike."""
    for num_seqs, prefix, length in SHARED:
        decode = Decode.random([length] * num_seqs, KV_HEADS, 4, torch.bfloat16)
        decode.tables[:, : prefix // 16] = decode.tables[0, : prefix // 16].clone()
        own = num_seqs * (length - prefix)
        outs = []
        for name, tokens in (("apart", num_seqs * prefix + own), ("shared", prefix + own)):
            out, body = _decode(decode, shares=name == "shared")
            num_bytes = 2 * 2 * KV_HEADS * HEAD_SIZE * tokens
            yield {"seqs": num_seqs, "prefix": prefix, "kind": name, "bytes": num_bytes}, body
            outs.append(out)
        if not torch.equal(*outs):
            raise AssertionError("sequences that share have other bits than apart")


def expert_cases() -> Iterator[Case]:
    """The experts of a layer, from the router's logits to the sum, over random rows."""
    layers = [
        DeviceExperts(
            WholeExperts(_normal(NUM_EXPERTS, 2 * INSIDE, HIDDEN)),
            WholeExperts(_normal(NUM_EXPERTS, HIDDEN, INSIDE)),
            num_ranks=1,
            num_parts=1,
            activation=gated_activation("silu"),
            routing=ExpertRouting(NUM_EXPERTS, TOP_K, normalizes=True),
        )
        for _ in range(2)
    ]
    for rows in EXPERT_ROWS:
        hidden, logits = _normal(rows, HIDDEN), _normal(rows, NUM_EXPERTS)
        used = len(set(logits.topk(TOP_K).indices.flatten().tolist()))
        figures = {
            "rows": rows,
            "bytes": 2 * 3 * used * HIDDEN * INSIDE,
            "operations": 2 * 3 * rows * TOP_K * HIDDEN * INSIDE,
            "times": len(layers),
        }

        def body(hidden: Tensor = hidden, logits: Tensor = logits) -> None:
            for layer in layers:
                layer(hidden, logits, None, hidden.dtype)

        yield figures, body


def weight_only_cases() -> Iterator[Case]:
    """A layer over weights of 8 and 4 bits, with scales of groups of 128."""
    shape = OUT_FEATURES // 16, IN_FEATURES // 64
    scales = torch.rand(shape[0], IN_FEATURES // GROUP_SIZE, 16, 2, device="cuda")
    scales[..., 1] = 2.0**23 + 8
    for name, bits in (("int8", 8), ("int4", 4), ("float8", 8)):
        dtype = torch.int8 if name == "float8" else torch.uint8
        codes = torch.randint(0, 64, (NUM_LAYERS, *shape, 128 * bits), device="cuda", dtype=dtype)
        packed = codes.view(torch.float8_e4m3fn if name == "float8" else torch.int8)
        for rows in LINEAR_ROWS:
            x = _normal(rows, IN_FEATURES)
            out = x.new_empty(rows, OUT_FEATURES)

            def body(
                x: Tensor = x, out: Tensor = out, packed: Tensor = packed, bits: int = bits
            ) -> None:
                for weight in packed:
                    ops.weight_only_linear(out, x, weight, scales, None, bits)

            num_bytes = OUT_FEATURES * IN_FEATURES * bits // 8 + scales.nbytes
            yield {"kind": name, "rows": rows, "bytes": num_bytes, "times": NUM_LAYERS}, body


def sampling_cases() -> Iterator[Case]:
    """Tokens of rows of a vocabulary of 128,256."""
    for rows in SAMPLED_ROWS:
        logits = _normal(rows, VOCAB_SIZE, dtype=torch.float32).mul_(3)
        for name, (temperature, top_k, top_p) in SAMPLING.items():
            operands = (
                torch.full((rows,), temperature, device="cuda"),
                torch.full((rows,), top_k, device="cuda", dtype=torch.int32),
                torch.full((rows,), top_p, device="cuda"),
                torch.zeros(rows, device="cuda"),
                torch.arange(rows, device="cuda"),
                torch.zeros(rows, device="cuda", dtype=torch.int32),
                torch.zeros(rows, device="cuda", dtype=torch.int64),
            )

            def body(logits: Tensor = logits, operands: tuple[Tensor, ...] = operands) -> None:
                ops.sample(logits, *operands)

            yield {"kind": name, "rows": rows, "bytes": logits.nbytes}, body


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "latent": latent_cases,
    "shared": shared_cases,
    "experts": expert_cases,
    "weight_only": weight_only_cases,
    "sampling": sampling_cases,
}


def captured(body: Callable[[], object]) -> Callable[[], object]:
    """Return a call that starts what one of `body` starts, without the host's time for each."""
    body()  # what is allocated at a first call
    graph = torch.cuda.CUDAGraph()
    new_capture: Any = torch.cuda.graph  # not annotated
    with new_capture(graph, stream=torch.cuda.current_stream()):
        body()
    return graph.replay


def measure(cases: Iterator[Case], copy_rate: float) -> Iterator[Figures]:
    """Yield the figures of each case with its microseconds, and its share or rate."""
    for figures, body in cases:
        us = microseconds(captured(body), 5) / figures.pop("times", 1)
        found = figures | {"us": us}
        if "bytes" in figures:
            found["share_of_copy"] = figures["bytes"] / (1e-6 * us) / copy_rate
        if "operations" in figures:
            found["tflops"] = 1e-6 * figures["operations"] / us
        yield found


def main() -> int:
    """Print every case, and all of it as JSON where --json says; 1 without a GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file that gets the figures")
    parser.add_argument("--only", choices=CASES, nargs="+", default=CASES, help="kinds to measure")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 1
    new_stream: Any = torch.cuda.Stream  # not annotated
    # What is captured must not be on torch's first stream.
    with torch.cuda.stream(new_stream()):
        measure_all(arguments.only, arguments.json)
    return 0


def measure_all(kinds: Iterable[str], path: Path | None) -> None:
    """Print what each case takes; write what is known so far, as a run may be cut short."""
    rates = memory_rates()
    figures: Figures = {"memory": rates}
    for kind in kinds:
        figures[kind] = []
        for found in measure(CASES[kind](), rates["copy"]):
            figures[kind].append(found)
            print(kind, *(f"{name} {_shown(value)}" for name, value in found.items()), flush=True)
            if path is not None:
                unfinished = path.with_suffix(".new")
                unfinished.write_text(json.dumps(figures, indent=1))
                unfinished.rename(path)
        torch.cuda.empty_cache()


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
