"""A wrong shape, dtype, stride or index is named with its value, and nothing is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from worker_svc import ops

T, H, HKV, D, B, BS, N = 5, 4, 2, 16, 6, 8, 2


def attention_arguments() -> dict[str, Any]:
    """A call that is right."""
    return {
        "out": torch.zeros(T, H, D),
        "query": torch.randn(T, H, D),
        "key_cache": torch.randn(B, HKV, BS, D),
        "value_cache": torch.randn(B, HKV, BS, D),
        "block_tables": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        "seq_lens": torch.tensor([9, 12], dtype=torch.int32),
        "query_start_loc": torch.tensor([0, 1, 5], dtype=torch.int32),
        "scale": 0.25,
    }


def cache_arguments() -> dict[str, Any]:
    """A call that is right."""
    return {
        "key": torch.randn(T, HKV, D),
        "value": torch.randn(T, HKV, D),
        "key_cache": torch.zeros(B, HKV, BS, D),
        "value_cache": torch.zeros(B, HKV, BS, D),
        "slot_mapping": torch.arange(T),
    }


def rotary_arguments() -> dict[str, Any]:
    """A call that is right."""
    arguments = cache_arguments()
    return {
        "positions": torch.arange(T),
        "query": torch.randn(T, H, D),
        "key": arguments.pop("key"),
        "value": arguments.pop("value"),
        "cos_sin_cache": torch.randn(T, D),
        "is_neox": True,
    } | arguments


def copy_arguments() -> dict[str, Any]:
    """A call that is right."""
    return {
        "key_caches": [torch.randn(B, HKV, BS, D)],
        "value_caches": [torch.randn(B, HKV, BS, D)],
        "block_mapping": torch.tensor([[0, 1]]),
    }


def swap_arguments() -> dict[str, Any]:
    """A call that is right."""
    return {
        "src_cache": torch.randn(B, HKV, BS, D),
        "dst_cache": torch.randn(B, HKV, BS, D),
        "block_mapping": torch.tensor([[0, 1]]),
    }


def strided(*shape: int) -> Tensor:
    """A tensor whose last dimension is not dense."""
    return torch.randn(*shape[:-1], shape[-1] * 2)[..., ::2]


ATTENTION: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"query": torch.randn(T, H)}, ("query", "[T, H, D]")),
    ({"query": torch.randn(T, H, D, dtype=torch.float64)}, ("query", "float64")),
    ({"query": strided(T, H, D)}, ("query", "stride")),
    ({"query": torch.randn(T, 3, D), "out": torch.zeros(T, 3, D)}, ("query", "3", "2")),
    ({"out": torch.zeros(T, H, 8)}, ("value_cache", "8")),
    (
        {"out": torch.zeros(T, H, 12), "value_cache": torch.randn(B, HKV, BS, 12)},
        ("out", "multiple of 8", "12"),
    ),
    (
        {"out": torch.zeros(T, H, 584), "value_cache": torch.randn(B, HKV, BS, 584)},
        ("out", "up to 576", "584"),
    ),
    ({"out": torch.zeros(T, H, D, dtype=torch.bfloat16)}, ("out", "bfloat16", "float32")),
    ({"key_cache": torch.randn(B, HKV, BS, 8)}, ("key_cache", "8")),
    ({"key_cache": torch.randn(B, HKV, BS, D).half()}, ("key_cache", "float16")),
    ({"value_cache": torch.randn(B + 1, HKV, BS, D)}, ("value_cache", str(B + 1))),
    ({"block_tables": torch.zeros(N, 2)}, ("block_tables", "int32")),
    ({"block_tables": torch.zeros(N, dtype=torch.int32)}, ("block_tables", "[N, MB]")),
    ({"block_tables": torch.tensor([[0, 6], [2, 3]]).int()}, ("block_tables[0][1]", "6")),
    ({"block_tables": torch.tensor([[0, 1], [-1, 3]]).int()}, ("block_tables[1][0]", "-1")),
    ({"seq_lens": torch.tensor([9])}, ("seq_lens", "1")),
    ({"seq_lens": torch.tensor([9, 17]).int()}, ("seq_lens[1]", "16", "17")),
    ({"seq_lens": torch.tensor([9, 3]).int()}, ("seq_lens[1]", "4", "3")),
    ({"query_start_loc": torch.tensor([0, 5]).int()}, ("query_start_loc", "2")),
    ({"query_start_loc": torch.tensor([1, 2, 5]).int()}, ("query_start_loc[0]", "1")),
    ({"query_start_loc": torch.tensor([0, 4, 3]).int()}, ("query_start_loc[2]", "3")),
    ({"query_start_loc": torch.tensor([0, 1, 6]).int()}, ("query_start_loc[2]", "6")),
    ({"scale": float("nan")}, ("scale", "nan")),
    ({"alibi_slopes": torch.ones(HKV)}, ("alibi_slopes", "2")),
    ({"alibi_slopes": torch.ones(H, dtype=torch.float64)}, ("alibi_slopes", "float64")),
    ({"sinks": torch.ones(HKV)}, ("sinks", "[H]", "2")),
    ({"sinks": torch.ones(H, dtype=torch.bfloat16)}, ("sinks", "float32", "bfloat16")),
    ({"sinks": torch.ones(H * 2)[::2]}, ("sinks", "contiguous")),
    ({"sliding_window": 0}, ("sliding_window", "0")),
    ({"soft_cap": 0.0}, ("soft_cap", "0")),
    ({"soft_cap": float("inf")}, ("soft_cap", "inf")),
    (
        {name: torch.zeros(T, H, 12) for name in ("query", "out")}
        | {name: torch.zeros(B, HKV, BS, 12) for name in ("key_cache", "value_cache")},
        ("head size", "multiple of 8", "12"),
    ),
    (
        {name: torch.zeros(B, HKV, 12, D) for name in ("key_cache", "value_cache")},
        ("block size", "power of two", "12"),
    ),
]

CACHE: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"key": torch.randn(T, HKV)}, ("key", "[T, Hkv, D]")),
    ({"value": torch.randn(T, HKV, 8)}, ("value", "8")),
    ({"value": torch.randn(T, HKV, D).bfloat16()}, ("value", "bfloat16")),
    ({"key": strided(T, HKV, D)}, ("key", "stride")),
    ({"key_cache": torch.zeros(B, 3, BS, D)}, ("key_cache", "3")),
    ({"value_cache": torch.zeros(B, HKV, BS * 2, D)}, ("value_cache", "16")),
    ({"slot_mapping": torch.arange(T).int()}, ("slot_mapping", "int64")),
    ({"slot_mapping": torch.arange(T + 1)}, ("slot_mapping", str(T + 1))),
    ({"slot_mapping": torch.tensor([0, 1, 2, 3, B * BS])}, ("slot_mapping[4]", str(B * BS))),
    ({"value": None}, ("value_cache", "without the other")),
    ({"value_cache": None}, ("value_cache", "without the other")),
]

ROTARY: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"positions": torch.arange(T) + 1}, ("positions[4]", "5")),
    ({"query": torch.randn(T, H, D).half()}, ("key", "float16", "float32")),
    ({"cos_sin_cache": torch.randn(T, D + 2)}, ("cos_sin_cache", "18", "16")),
    ({"value": torch.randn(T - 1, HKV, D)}, ("value", "[T, Hkv, D]")),
    ({"key_cache": torch.zeros(B, 3, BS, D)}, ("key_cache", "3")),
    ({"slot_mapping": torch.arange(T + 1)}, ("slot_mapping", "(5)", "6")),
    ({"slot_mapping": torch.tensor([[0]])}, ("slot_mapping", "[S]")),
    ({"slot_mapping": torch.tensor([B * BS])}, ("slot_mapping[0]", str(B * BS))),
]

INT8_CACHES = {
    name: torch.zeros(B, HKV, BS, D + 4, dtype=torch.int8) for name in ("key_cache", "value_cache")
}
QUANTISED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        INT8_CACHES | {"key_cache": torch.zeros(B, HKV, BS, D, dtype=torch.int8)},
        ("key_cache", "[B, Hkv, BS, D + 4]", "20", "16"),
    ),
    (INT8_CACHES | {"value_cache": torch.zeros(B, HKV, BS, D)}, ("value_cache", "int8", "float32")),
    (
        INT8_CACHES | {"key_cache": torch.zeros(B, HKV, BS, D).to(torch.float8_e4m3fn)},
        ("key_cache", "float32", "int8", "float8_e4m3fn"),
    ),
]

QUANTISED += [
    ({"k_scale": torch.ones(HKV)}, ("k_scale", "float8_e4m3fn", "float32")),
    (INT8_CACHES | {"v_scale": torch.ones(HKV)}, ("v_scale", "float8_e4m3fn", "int8")),
    (
        INT8_CACHES | {"value_cache": torch.zeros(B, HKV, BS, 8, dtype=torch.int8)},
        ("value_cache", "as key_cache", "8"),
    ),
]

QUANTISED_ATTENTION: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (INT8_CACHES | {"out": torch.zeros(T, H, 8)}, ("out", "16 elements", "quantised", "8")),
    (INT8_CACHES | {"out": torch.zeros(T, H, 32)}, ("out", "16 elements", "quantised", "32")),
]

COPY: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"value_caches": [torch.randn(B, HKV, BS, D)] * 2}, ("value_caches", "(1)", "2")),
    ({"key_caches": [torch.randn(B, HKV, D, BS).transpose(2, 3)]}, ("key_caches", "dense")),
    ({"block_mapping": torch.tensor([[0, 1, 2]])}, ("block_mapping", "[P, 2]")),
    ({"block_mapping": torch.tensor([[0, 1]]).int()}, ("block_mapping", "int64")),
    ({"block_mapping": torch.tensor([[0, 1], [B, 0]])}, ("block_mapping[1] source", "6")),
    ({"block_mapping": torch.tensor([[0, -1]])}, ("block_mapping[0] destination", "-1")),
]

SWAP: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"dst_cache": torch.randn(B, HKV, BS, 8)}, ("dst_cache", "8")),
    ({"dst_cache": torch.randn(B, HKV, BS, D).half()}, ("dst_cache", "float16")),
    ({"dst_cache": torch.randn(B, BS, HKV, D).transpose(1, 2)}, ("dst_cache", "layout")),
    ({"block_mapping": torch.tensor([[0, B]])}, ("block_mapping[0] destination", "6")),
]


def cases() -> list[Any]:
    """(operation, arguments, words of the message), each with a readable name."""
    operations: list[tuple[Callable[..., object], Callable[[], dict[str, Any]], Any]] = [
        (ops.paged_attention, attention_arguments, ATTENTION),
        (ops.reshape_and_cache, cache_arguments, CACHE),
        (ops.paged_attention, attention_arguments, QUANTISED + QUANTISED_ATTENTION),
        (ops.reshape_and_cache, cache_arguments, QUANTISED),
        (ops.rotary_and_cache, rotary_arguments, ROTARY),
        (ops.copy_blocks, copy_arguments, COPY),
        (ops.swap_blocks, swap_arguments, SWAP),
    ]
    return [
        pytest.param(operation, make, changes, words, id=f"{operation.__name__}-{words[0]}-{i}")
        for operation, make, list_of_changes in operations
        for i, (changes, words) in enumerate(list_of_changes)
    ]


def tensors(arguments: dict[str, Any]) -> list[Tensor]:
    """Every tensor among the arguments."""
    found = []
    for value in arguments.values():
        found.extend(v for v in (value if isinstance(value, list) else [value]))
    return [value for value in found if isinstance(value, Tensor)]


@pytest.mark.parametrize(("operation", "make", "changes", "words"), cases())
def test_is_refused_by_name(
    operation: Callable[..., object],
    make: Callable[[], dict[str, Any]],
    changes: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    operation(**make())  # right without the change
    arguments = make() | changes
    before = [tensor.clone() for tensor in tensors(arguments)]
    with pytest.raises(ValueError, match=words[0].split("[")[0]) as caught:
        operation(**arguments)
    for word in words:
        assert word in str(caught.value)
    for tensor, old in zip(tensors(arguments), before, strict=True):
        assert torch.equal(tensor, old)


def test_gather_refuses_what_reshape_refuses() -> None:
    arguments = cache_arguments()
    arguments["slot_mapping"][0] = B * BS
    with pytest.raises(ValueError, match=r"slot_mapping\[0\]"):
        ops.gather_cached_kv(*arguments.values())


@pytest.mark.parametrize("not_a_tensor", [None, 3, [1.0], "query"])
def test_what_is_no_tensor_is_a_type_error(not_a_tensor: object) -> None:
    with pytest.raises(TypeError):
        ops.paged_attention(**(attention_arguments() | {"query": not_a_tensor}))


def test_unknown_instruction_set_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"scalar.*'mmx'"):
        ops.set_isa("mmx")
