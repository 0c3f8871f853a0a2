"""Keys of DeepSeek's config.json: absent, null, and which layers have experts."""

from collections.abc import Callable
from typing import Any

import pytest

from quire.contract.errors import ModelLoadError
from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.deepseek import DeepseekConfig, read_deepseek_v2, read_deepseek_v3

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
}
Read = Callable[[HfConfig], DeepseekConfig]
both = pytest.mark.parametrize("read", [read_deepseek_v2, read_deepseek_v3])


def config(read: Read, **values: Any) -> DeepseekConfig:
    return read(HfConfig({**SIZES, **values}, "config.json"))


@both
def test_queries_have_no_latent_where_its_rank_is_null(read: Read) -> None:
    assert config(read).latent.q_lora_rank == 1536
    assert config(read, q_lora_rank=48).latent.q_lora_rank == 48
    assert config(read, q_lora_rank=None).latent.q_lora_rank is None


@pytest.mark.parametrize(("read", "default"), [(read_deepseek_v2, 2), (read_deepseek_v3, 1)])
def test_there_are_no_shared_experts_where_they_are_null_or_0(read: Read, default: int) -> None:
    assert config(read).num_shared_experts == default
    assert config(read, n_shared_experts=3).num_shared_experts == 3
    assert config(read, n_shared_experts=0).num_shared_experts == 0
    assert config(read, n_shared_experts=None).num_shared_experts == 0


@pytest.mark.parametrize(("read", "default"), [(read_deepseek_v2, 64), (read_deepseek_v3, 256)])
def test_routed_experts_that_are_null_are_refused(read: Read, default: int) -> None:
    assert config(read).moe.routing.num_experts == default
    with pytest.raises(
        ModelLoadError, match="n_routed_experts: must be a positive integer, got null"
    ):
        config(read, n_routed_experts=None)


@both
@pytest.mark.parametrize(
    ("first", "frequency", "dense"),
    [
        (0, 1, []),
        (0, 2, [1, 3, 5]),
        (1, 2, [0, 1, 3, 5]),
        (3, 2, [0, 1, 2, 3, 5]),
        (9, 1, [*range(6)]),
    ],
)
def test_layers_are_dense_before_the_first_and_between(
    read: Read, first: int, frequency: int, dense: list[int]
) -> None:
    found = config(read, first_k_dense_replace=first, moe_layer_freq=frequency)
    assert sorted(found.moe.dense_layers) == dense


def test_only_v3_has_default_groups() -> None:
    routing = config(read_deepseek_v3).moe.routing
    assert (routing.num_groups, routing.topk_group) == (8, 4)
    routing = config(read_deepseek_v2).moe.routing
    assert (routing.num_groups, routing.topk_group) == (1, 1)
