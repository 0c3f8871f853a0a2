import pytest

from quire.contract.errors import ConfigError
from scheduler_svc.config import SchedulerConfig


def make_config(**settings: object) -> SchedulerConfig:
    return SchedulerConfig(**{"model": "/m", "served_model_name": "m", **settings})  # type: ignore[arg-type]


def test_defaults_are_valid() -> None:
    config = make_config()
    assert config.tensor_parallel_size == 1
    assert (config.block_size, config.max_num_batched_tokens, config.max_num_seqs) == (
        16,
        2048,
        256,
    )


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"model": ""}, ["model"]),
        ({"served_model_name": ""}, ["served_model_name"]),
        ({"workers": ()}, ["workers", "64", "0"]),
        ({"workers": ("a:1",), "announced_ranks": 1}, ["workers", "a:1"]),
        ({"workers": (), "announced_ranks": 65}, ["announced_ranks", "64", "65"]),
        ({"workers": ("nowhere",)}, ["workers", "nowhere"]),
        ({"workers": ("a:1", "a:1")}, ["once"]),
        ({"distributed_timeout_s": 0.5}, ["distributed_timeout_s", "[1, 3600]", "0.5"]),
        ({"dtype": "int8"}, ["dtype", "int8"]),
        ({"port": 70_000}, ["port", "65535", "70000"]),
        ({"block_size": 0}, ["block_size", "1", "0"]),
        ({"num_gpu_blocks_override": 0}, ["num_gpu_blocks_override", "0"]),
        ({"kv_cache_memory_bytes": -1}, ["kv_cache_memory_bytes", "-1"]),
        ({"kv_cache_dtype": "int4"}, ["kv_cache_dtype", "auto, fp8, int8", "int4"]),
        ({"gpu_memory_utilization": 1.1}, ["gpu_memory_utilization", "(0, 1]", "1.1"]),
        ({"max_model_len": 1}, ["max_model_len", "2", "1"]),
        ({"max_num_batched_tokens": 0}, ["max_num_batched_tokens", "0"]),
        ({"max_num_seqs": 0}, ["max_num_seqs", "0"]),
        ({"max_waiting": 0}, ["max_waiting", "0"]),
        ({"max_steps_in_flight": 3}, ["max_steps_in_flight", "3"]),
        ({"drain_timeout_s": -1.0}, ["drain_timeout_s", "86400", "-1.0"]),
        ({"watermark": 1.0}, ["watermark", "1.0"]),
        ({"watermark": float("nan")}, ["watermark", "nan"]),
        ({"log_level": "loud"}, ["log_level", "loud"]),
    ],
)
def test_a_bad_setting_is_named_with_its_value(
    settings: dict[str, object], parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(**settings)
    assert all(part in caught.value.message for part in parts), caught.value.message
