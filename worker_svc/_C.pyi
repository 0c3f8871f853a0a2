"""The compiled kernels (csrc/bindings). worker_svc.ops documents the operations."""

from collections.abc import Sequence

from torch import Tensor

def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    /,
) -> None: ...
def gather_cached_kv(
    key_out: Tensor,
    value_out: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    /,
) -> None: ...
def copy_blocks(
    key_caches: Sequence[Tensor], value_caches: Sequence[Tensor], block_mapping: Tensor, /
) -> None: ...
def swap_blocks(src_cache: Tensor, dst_cache: Tensor, block_mapping: Tensor, /) -> None: ...
def paged_attention(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    alibi_slopes: Tensor | None,
    sliding_window: int | None,
    soft_cap: float | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    plan: AttentionPlan | None,
    /,
) -> None: ...

class AttentionPlan: ...

def plan_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    sliding_window: int | None,
    max_seq_len: int | None,
    earlier: AttentionPlan | None,
    /,
) -> AttentionPlan | None: ...
def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, /) -> None: ...
def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, /) -> None: ...
def layer_norm(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, /
) -> None: ...
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, is_neox: bool, /
) -> None: ...
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
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    /,
) -> None: ...
def silu_and_mul(out: Tensor, x: Tensor, /) -> None: ...
def gelu_and_mul(out: Tensor, x: Tensor, /) -> None: ...
def gelu_tanh_and_mul(out: Tensor, x: Tensor, /) -> None: ...
def gelu(out: Tensor, x: Tensor, /) -> None: ...
def gelu_tanh(out: Tensor, x: Tensor, /) -> None: ...
def quick_gelu(out: Tensor, x: Tensor, /) -> None: ...
def linear(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    total_features: int,
    /,
) -> None: ...
def apply_penalties(
    logits: Tensor,
    token_ids: Tensor,
    num_prompt_tokens: Tensor,
    num_tokens: Tensor,
    repetition_penalty: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    /,
) -> None: ...
def apply_token_mask(logits: Tensor, bitmask: Tensor, /) -> None: ...
def top_logprobs(
    logprobs: Tensor,
    ranks: Tensor,
    top_token_ids: Tensor,
    top_logprobs: Tensor,
    logits: Tensor,
    token_ids: Tensor,
    /,
) -> None: ...
def sample(
    token_ids: Tensor,
    ok: Tensor,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sequence_index: Tensor,
    position: Tensor,
    /,
) -> None: ...
def set_stream(stream: int, /) -> None: ...
def isa() -> str: ...
def available_isas() -> list[str]: ...
def set_isa(name: str, /) -> None: ...
def set_num_threads(num_threads: int, /) -> None: ...
def advise_huge_pages(tensor: Tensor, /) -> None: ...
def stream_read(tensor: Tensor, /) -> int: ...
def philox4x32(counter: Sequence[int], key: Sequence[int], /) -> list[int]: ...
