import pytest

from quire.contract.errors import ConfigError
from scheduler_svc.config import SchedulerConfig


def make_config(**settings: object) -> SchedulerConfig:
    return SchedulerConfig(**{"model": "/m", "served_model_name": "m", **settings})  # type: ignore[arg-type]


def test_defaults_are_valid() -> None:
    config = make_config()
    assert config.num_ranks == 1
    assert (config.block_size, config.max_num_batched_tokens, config.max_num_seqs) == (
        16,
        2048,
        256,
    )


def test_workers_are_named_or_announce_themselves_or_are_the_default_one() -> None:
    named = make_config(workers=("a:1", "b:1"))
    assert (named.worker_addresses, named.num_ranks) == (("a:1", "b:1"), 2)
    announced = make_config(tensor_parallel_size=3)
    assert (announced.worker_addresses, announced.num_ranks) == ((), 3)
    assert announced.waits_for_announcements
    alone = make_config()
    assert (alone.worker_addresses, alone.num_ranks) == (("127.0.0.1:50053",), 1)
    assert not alone.waits_for_announcements


def test_a_model_has_the_name_of_its_directory_unless_it_is_given_one() -> None:
    assert make_config(model="/models/tiny", served_model_name="").model_name == "tiny"
    assert make_config(model="/models/tiny", served_model_name="big").model_name == "big"


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"model": ""}, ["model"]),
        ({"workers": tuple(f"a:{n}" for n in range(1, 66))}, ["workers", "64", "65"]),
        (
            {"workers": ("a:1", "b:1"), "tensor_parallel_size": 1},
            ["tensor_parallel_size: must be 2", "got 1"],
        ),
        ({"tensor_parallel_size": 65}, ["tensor_parallel_size", "64", "65"]),
        ({"workers": ("nowhere",)}, ["workers", "nowhere"]),
        ({"workers": ("a:1", "a:1")}, ["different addresses", "a:1, a:1"]),
        ({"distributed_timeout_s": 0.5}, ["distributed_timeout_s", "[1, 3600]", "0.5"]),
        ({"dtype": "int8"}, ["dtype", "int8"]),
        ({"port": 70_000}, ["port", "65535", "70000"]),
        ({"block_size": 0}, ["block_size", "1", "0"]),
        ({"num_gpu_blocks_override": 0}, ["num_gpu_blocks_override", "0"]),
        ({"kv_cache_gib": -1.0}, ["kv_cache_gib", "-1.0"]),
        ({"kv_cache_dtype": "int4"}, ["kv_cache_dtype", "auto, fp8, int8", "int4"]),
        ({"gpu_memory_utilization": 1.1}, ["gpu_memory_utilization", "(0, 1]", "1.1"]),
        ({"max_model_len": 1}, ["max_model_len", "2", "1"]),
        ({"max_num_batched_tokens": 0}, ["max_num_batched_tokens", "0"]),
        ({"max_num_seqs": 0}, ["max_num_seqs", "0"]),
        ({"max_waiting": 0}, ["max_waiting", "0"]),
        ({"max_waiting_tokens": 0}, ["max_waiting_tokens", "0"]),
        ({"speculation": "draft-model"}, ["draft_model: must be given", "'' with draft-model"]),
        ({"draft_model": "d"}, ["draft_model: must be given", "'d' with off"]),
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
