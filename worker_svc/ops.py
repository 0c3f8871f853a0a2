"""The kernels of csrc as functions on torch tensors.

Every operation writes into tensors that the caller gives, runs without the GIL and checks all of
its arguments first: a wrong shape, dtype, stride or index raises ValueError naming the argument and
the values. An operation runs where its tensors live, on the CPU or a GPU, and what lies on a GPU is
not looked at: indices are then the caller's to check. Tensors have unit stride in their last
dimension; other dimensions may be strided, so views of a fused projection are fine.

Symbols: T tokens of the step, N sequences, H query heads, Hkv key/value heads, D head size,
B blocks, BS block size, MB blocks in the longest table. Activations, weights and caches share one
dtype out of float32, bfloat16 and float16; arithmetic is float32.

Caches may be quantised instead: what they hold is taken from their dtype, both of a layer alike.
- torch.int8 [B, Hkv, BS, D + 4], on the CPU: a row is D integers in [-127, 127] and the float32
  that they are multiples of, the row's largest magnitude / 127. Nothing is calibrated. A row that
  holds an infinity or NaN reads back as NaN; one of magnitudes below 127 * 2^-126 as zeros.
- torch.float8_e4m3fn [B, Hkv, BS, D], on a GPU: an element times the scale of its head, which every
  call is given. What is cached is x / scale rounded to nearest even, at most 448 in magnitude.
Operations that move blocks take them as they are. A dtype that the device does not serve raises
ValueError naming those it does.

Results follow the invariance rule: the bits of a row depend on that row, its context and the
instruction set alone, never on the batch, the chunk, the layout or the number of threads.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from worker_svc import _C
    from worker_svc._C import AttentionPlan
else:

    def _load_kernels() -> ModuleType:
        """Import the compiled kernels, or the build named by QUIRE_KERNELS (a path)."""
        path = os.environ.get("QUIRE_KERNELS")
        if not path:
            return importlib.import_module("worker_svc._C")
        spec = importlib.util.spec_from_file_location("worker_svc._C", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"QUIRE_KERNELS is not an extension module: {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules["worker_svc._C"] = module
        spec.loader.exec_module(module)
        return module

    _C = _load_kernels()


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Write the keys and values of new tokens into their cache slots.

    Args:
        key: [T, Hkv, D].
        value: [T, Hkv, D].
        key_cache: [B, Hkv, BS, D], or quantised.
        value_cache: as key_cache.
        slot_mapping: [T] int64, block * BS + offset; a negative slot marks padding and is skipped.
        k_scale: [Hkv] float32, of float8 caches only; None for 1.
        v_scale: as k_scale.

    Mutates:
        key_cache, value_cache.
    """
    _C.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale)


def gather_cached_kv(
    key_out: Tensor,
    value_out: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Read keys and values back from their slots, the inverse of reshape_and_cache.

    Args:
        key_out: [T, Hkv, D].
        value_out: [T, Hkv, D].
        key_cache: [B, Hkv, BS, D], or quantised.
        value_cache: as key_cache.
        slot_mapping: [T] int64; rows with a negative slot are left as they are.
        k_scale: as it was for reshape_and_cache.
        v_scale: the same.

    Mutates:
        key_out, value_out.
    """
    _C.gather_cached_kv(key_out, value_out, key_cache, value_cache, slot_mapping, k_scale, v_scale)


def copy_blocks(
    key_caches: list[Tensor], value_caches: list[Tensor], block_mapping: Tensor
) -> None:
    """Copy blocks within the caches of every layer.

    Args:
        key_caches: One [B, Hkv, BS, D] per layer, of any dtype; each block dense in memory.
        value_caches: As key_caches.
        block_mapping: [P, 2] int64 pairs (source, destination), applied in order: a pair sees what
            earlier ones wrote.

    Mutates:
        key_caches, value_caches.
    """
    _C.copy_blocks(key_caches, value_caches, block_mapping)


def swap_blocks(src_cache: Tensor, dst_cache: Tensor, block_mapping: Tensor) -> None:
    """Copy blocks from one cache to another of the same layout.

    Args:
        src_cache: [B, Hkv, BS, D], of any dtype, each block dense in memory.
        dst_cache: [B', Hkv, BS, D].
        block_mapping: [P, 2] int64 pairs (source block, destination block).

    Mutates:
        dst_cache.
    """
    _C.swap_blocks(src_cache, dst_cache, block_mapping)


def plan_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    sliding_window: int | None = None,
    max_seq_len: int | None = None,
    earlier: AttentionPlan | None = None,
) -> AttentionPlan | None:
    """Share out the attention of a step, once for all layers that are alike.

    How it is shared out changes no result.

    Mutates:
        earlier.

    Args:
        query: [T, H, D]; here and in the caches only shapes, strides and dtypes count.
        key_cache: [B, Hkv, BS, D], or quantised.
        value_cache: as key_cache.
        seq_lens: [N] int32, on the CPU.
        query_start_loc: [N + 1] int32, on the CPU.
        sliding_window: as for `paged_attention`.
        max_seq_len: makes a plan for a captured graph, whose sequences have at most one row each:
            made again of the same sizes, for any lengths up to this one, it keeps what the graph
            was captured with. All such plans of a thread are for one stream.
        earlier: a plan that is no longer needed, whose memory this one takes over.

    Returns:
        For `paged_attention` over these sequences; None where there is nothing to plan.
    """
    return _C.plan_attention(
        query,
        key_cache,
        value_cache,
        seq_lens,
        query_start_loc,
        sliding_window,
        max_seq_len,
        earlier,
    )


def paged_attention(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    *,
    alibi_slopes: Tensor | None = None,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    plan: AttentionPlan | None = None,
) -> None:
    """Causal attention of a ragged batch over paged keys and values: decode, prefill, chunks.

    Row j of sequence i, which is row query_start_loc[i] + j of query, stands at position
    seq_lens[i] - query_len + j and sees the keys at its own and earlier positions. Query head h
    reads key/value head h // (H // Hkv). Logits are scaled, then capped, then biased, then masked.
    Over quantised caches it is attention over the numbers that they mean, up to float32 rounding.

    Args:
        out: [T, H, D]; rows from query_start_loc[N] on are left as they are.
        query: [T, H, D]; D a multiple of 8 up to 256.
        key_cache: [B, Hkv, BS, D], or quantised; BS a power of two in [8, 256].
        value_cache: as key_cache.
        block_tables: [N, MB] int32; only entries that hold a visible key are read.
        seq_lens: [N] int32, keys of each sequence including those of this step.
        query_start_loc: [N + 1] int32, starting at 0; a sequence may have no rows.
        scale: Factor of the logits, usually 1 / sqrt(D).
        alibi_slopes: [H] float32; adds slope * (key position - query position) (Press et al. 2022).
        sliding_window: Only keys with query position - key position < window are seen.
        soft_cap: Logits become cap * tanh(logit / cap).
        k_scale: [Hkv] float32, of float8 caches only; None for 1.
        v_scale: as k_scale.
        plan: what `plan_attention` returned for this step; without one each call makes its own, for
            which the CPU waits on a GPU.

    Mutates:
        out.
    """
    _C.paged_attention(
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        query_start_loc,
        scale,
        alibi_slopes,
        sliding_window,
        soft_cap,
        k_scale,
        v_scale,
        plan,
    )


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    """Divide rows by their root mean square and scale them (Zhang and Sennrich 2019).

    Args:
        out: As x, which it may be.
        x: [M, N], or [M, H, N] to normalise each head.
        weight: [N].
        eps: Added to the mean square.

    Mutates:
        out.
    """
    _C.rms_norm(out, x, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """Add x to the residual stream and normalise the sum: residual += x; x = rms_norm(residual).

    The bits are those of the addition and rms_norm one after the other.

    Args:
        x: [M, N] or [M, H, N].
        residual: As x.
        weight: [N].
        eps: Added to the mean square.

    Mutates:
        x, residual.
    """
    _C.fused_add_rms_norm(x, residual, weight, eps)


def layer_norm(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
    """Centre and scale rows to unit variance, then apply weight and bias (Ba et al. 2016).

    Args:
        out: As x, which it may be.
        x: [M, N] or [M, H, N].
        weight: [N].
        bias: [N], or None.
        eps: Added to the variance.

    Mutates:
        out.
    """
    _C.layer_norm(out, x, weight, bias, eps)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    """Rotate pairs of elements by angles that grow with the position (Su et al. 2021).

    Args:
        positions: [T] int64, in [0, P).
        query: [T, H, D].
        key: [T, Hkv, D].
        cos_sin_cache: [P, R] float32, R / 2 cosines then R / 2 sines; R <= D, elements beyond R are
            left as they are.
        is_neox: Pair element i with i + R / 2 (GPT-NeoX, Llama) instead of 2i with 2i + 1 (GPT-J).

    Mutates:
        query, key.
    """
    _C.rotary_embedding(positions, query, key, cos_sin_cache, is_neox)


def rotary_and_cache(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Rotate queries in place, and write rotated keys and values into their cache slots.

    The bits are those of rotary_embedding and reshape_and_cache one after the other, but `key` is
    left as it is.

    Args:
        positions: [T] int64, in [0, P).
        query: [T, H, D].
        key: [T, Hkv, D].
        value: [T, Hkv, D].
        cos_sin_cache: [P, R] float32, as for rotary_embedding.
        is_neox: as for rotary_embedding.
        key_cache: [B, Hkv, BS, D], or quantised.
        value_cache: as key_cache.
        slot_mapping: [S] int64, S <= T, of the first S rows; rows beyond are padding, and so are
            those with a negative slot: only their queries are rotated.
        k_scale: [Hkv] float32, of float8 caches only; None for 1.
        v_scale: as k_scale.

    Mutates:
        query, key_cache, value_cache.
    """
    _C.rotary_and_cache(
        positions,
        query,
        key,
        value,
        cos_sin_cache,
        is_neox,
        key_cache,
        value_cache,
        slot_mapping,
        k_scale,
        v_scale,
    )


def silu_and_mul(out: Tensor, x: Tensor) -> None:
    """Write silu(x[:, :N]) * x[:, N:] of x [M, 2N] to out [M, N]."""
    _C.silu_and_mul(out, x)


def gelu_and_mul(out: Tensor, x: Tensor) -> None:
    """Write gelu(x[:, :N]) * x[:, N:] of x [M, 2N] to out [M, N]."""
    _C.gelu_and_mul(out, x)


def gelu_tanh_and_mul(out: Tensor, x: Tensor) -> None:
    """Write gelu_tanh(x[:, :N]) * x[:, N:] of x [M, 2N] to out [M, N]."""
    _C.gelu_tanh_and_mul(out, x)


def gelu(out: Tensor, x: Tensor) -> None:
    """Write x * Phi(x) of x [M, N] to out [M, N], which it may be (Hendrycks and Gimpel 2016)."""
    _C.gelu(out, x)


def gelu_tanh(out: Tensor, x: Tensor) -> None:
    """Write the tanh approximation of gelu ("gelu_new", "gelu_pytorch_tanh") of x to out [M, N]."""
    _C.gelu_tanh(out, x)


def quick_gelu(out: Tensor, x: Tensor) -> None:
    """Write x * sigmoid(1.702 x) of x [M, N] to out [M, N], which it may be."""
    _C.quick_gelu(out, x)


def linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Multiply rows by weights, x @ weight.T + bias, on a GPU, by the invariance rule.

    A library of matrix products picks its algorithm by the number of rows; here the sum over K has
    one order, whatever M and whatever the alignment: K is cut into sections by N and K alone, which
    are summed in float32 (on tensor cores; of float32 operands by fused multiply-adds, not in TF32)
    and added in order, then the bias, and the result is rounded once.

    The first call of a thread allocates memory of the device, later ones none, so that they can be
    captured in a graph. What one thread starts on several streams must not overlap.

    Args:
        out: [M, N]; must not overlap the others.
        x: [M, K].
        weight: [N, K].
        bias: [N], or None.

    Mutates:
        out.

    Raises:
        ValueError: the operands are on the CPU, where dense layers are torch's with packed weights.
    """
    _C.linear(out, x, weight, bias)


def apply_penalties(
    logits: Tensor,
    token_ids: Tensor,
    num_prompt_tokens: Tensor,
    num_tokens: Tensor,
    repetition_penalty: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
) -> None:
    """Make tokens that a sequence holds already less probable, or more.

    First the repetition penalty divides positive and multiplies other logits of tokens in prompt or
    output (Keskar et al. 2019); then frequency * n + presence is subtracted from those of tokens
    that the output holds n > 0 times. A row whose penalties are 1, 0 and 0 is left alone, and none
    of its tokens counts. The same bits on every instruction set.

    Args:
        logits: [N, V] float32.
        token_ids: [N, L] int32, a sequence's prompt and then its output; what comes after
            num_tokens is not looked at. Ids on a GPU that are not in [0, V) change nothing.
        num_prompt_tokens: [N] int32.
        num_tokens: [N] int32, prompt and output, up to L.
        repetition_penalty: [N] float32, above 0; 1 is off.
        frequency_penalty: [N] float32; 0 is off.
        presence_penalty: [N] float32; 0 is off.

    Mutates:
        logits.
    """
    _C.apply_penalties(
        logits,
        token_ids,
        num_prompt_tokens,
        num_tokens,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
    )


def apply_token_mask(logits: Tensor, bitmask: Tensor) -> None:
    """Forbid tokens, by a grammar for example: their logits become -inf.

    Args:
        logits: [N, V] float32.
        bitmask: [N, ceil(V / 32)] int32; bit i % 32 of word i // 32 is set where token i may come.

    Mutates:
        logits.
    """
    _C.apply_token_mask(logits, bitmask)


def top_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the log-probability and rank of a token of each row, and the most probable tokens.

    Log-probabilities are worked out in float64, from probabilities that are summed exactly as
    multiples of 2^-44 of the largest, and rounded once. The same bits on every instruction set.

    Args:
        logits: [N, V] float32; V up to 2^20.
        token_ids: [N] int64.
        num_top: how many of the most probable, up to 1024; equals rank by token id, lowest first.

    Returns:
        Log-probabilities [N] float32 of the tokens and their ranks [N] int64, which is one more
        than the number of tokens of larger logits; then ids [N, min(num_top, V)] int64 of the most
        probable tokens and their log-probabilities, float32 of the same shape. Of a row that holds
        NaN or +inf or no finite value, log-probabilities are NaN and ids 0.
    """
    rows, vocab_size = logits.shape
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(rows, dtype=torch.int64, device=logits.device)
    shape = (rows, min(num_top, vocab_size))
    best = torch.empty(shape, dtype=torch.int64, device=logits.device)
    best_logprobs = torch.empty(shape, dtype=torch.float32, device=logits.device)
    _C.top_logprobs(logprobs, ranks, best, best_logprobs, logits, token_ids)
    return logprobs, ranks, best, best_logprobs


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sequence_index: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    Temperature is applied first, then three filters, each on what the one before it left: min-p
    keeps tokens at least min_p times as probable as the best, top-k the k best, top-p the fewest
    best whose renormalised probability reaches top_p. Equal logits rank by token id, lowest first,
    so a filter keeps an exact number of tokens and top_k = 1 equals greedy.

    The draw is an exponential race (the Gumbel trick) with Philox4x32-10 numbers: a function of
    seed, sequence index, position and token id and of nothing else, with the same bits on every
    instruction set.

    Args:
        logits: [N, V] float32; -inf forbids a token.
        temperature: [N] float32; 0 takes the most probable token.
        top_k: [N] int32; 0 is off.
        top_p: [N] float32 in [0, 1]; 1 is off, 0 keeps one token.
        min_p: [N] float32 in [0, 1]; 0 is off.
        seed: [N] int64, the bits of a uint64.
        sequence_index: [N] int32, which of a request's sequences this is.
        position: [N] int64, of the token to be drawn.

    Returns:
        Token ids [N] int64, and [N] bool which is False where the logits hold NaN or +inf or no
        finite value, in which case the row's token means nothing.
    """
    token_ids = logits.new_empty(logits.shape[0], dtype=torch.int64)
    ok = logits.new_empty(logits.shape[0], dtype=torch.bool)
    _C.sample(
        token_ids,
        ok,
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        sequence_index,
        position,
    )
    return token_ids, ok


def has_cuda() -> bool:
    """Whether there are kernels for GPUs in this build."""
    return hasattr(_C, "set_stream")


def set_stream(stream: int) -> None:
    """Start what the calling thread is told from now on, on a CUDA stream; 0 is the default one.

    Only in builds with kernels for GPUs.

    Args:
        stream: a cudaStream_t.
    """
    _C.set_stream(stream)


def isa() -> str:
    """Name the instruction set in use."""
    return _C.isa()


def available_isas() -> tuple[str, ...]:
    """Name the instruction sets that this machine can run, best first."""
    return tuple(_C.available_isas())


def set_isa(name: str) -> None:
    """Use another instruction set from now on; QUIRE_ISA in the environment does so at import.

    Not to be called while an operation runs.

    Raises:
        ValueError: This machine cannot run it.
    """
    _C.set_isa(name)


def set_num_threads(num_threads: int) -> None:
    """Set how many threads an operation uses, by default one per usable core.

    Not to be called while an operation runs.
    """
    _C.set_num_threads(num_threads)


def advise_huge_pages(tensor: Tensor) -> None:
    """Ask for huge pages behind a contiguous tensor, best before the tensor is first touched.

    Scattered reads of a large cache then miss the TLB far less. Systems without them ignore it.
    """
    _C.advise_huge_pages(tensor)


def stream_read(tensor: Tensor) -> int:
    """Read a contiguous tensor once and return the xor of its words: a yardstick of bandwidth."""
    return _C.stream_read(tensor)


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Return the four words that Philox4x32-10 makes of a counter and a key."""
    return tuple(_C.philox4x32(counter, key))
