"""What a model's files cannot give is refused before anything starts, and nothing else."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from launch import architecture_check, model_check
from launch.architecture_check import NEED_HEADS, ONE_KIND_OF_HEADS
from launch.cluster.config import embedded_model
from launch.model_check import MAX_PARTS
from quire.contract.errors import ConfigError, ModelLoadError
from tests.unit.launch.model_makers import DEMO, MakeModel, check, refused
from worker_svc.cache.format import KV_CACHE_DTYPES
from worker_svc.device.cpu import CpuDevice
from worker_svc.layers import partial_sums
from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.registry import FAMILIES

HEADS, LONGEST = DEMO["num_attention_heads"], DEMO["max_position_embeddings"]
pytestmark = pytest.mark.usefixtures("free_memory")


def test_the_demo_model_is_taken_as_it_is() -> None:
    check()
    check(max_model_len=LONGEST, kv_cache_gib=3.9, swap_space=3.9)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_ranks_that_can_share_are_taken(size: int) -> None:
    check(tensor_parallel_size=size)


@pytest.mark.parametrize("size", [3, 5, 6, 7, 9, 12, 16, 64])
def test_ranks_that_cannot_share_the_heads_are_refused(size: int) -> None:
    refused(
        f"tensor_parallel_size: must divide num_attention_heads ({HEADS}), got {size}",
        tensor_parallel_size=size,
    )


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("bert", "BertModel"),
        ("bert", "BertForMaskedLM"),
        ("llava", "LlavaForConditionalGeneration"),
        ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
        ("t5", "T5ForConditionalGeneration"),
        ("qwen2", "Qwen2ForSequenceClassification"),
        ("house", "HouseForCausalLM"),
    ],
)
def test_what_is_no_decoder_of_transformers_is_refused(
    model_type: str, architecture: str, make_model: MakeModel
) -> None:
    model = make_model(model_type=model_type, architectures=[architecture])
    refused(f"architectures: {architecture} is not served: transformers ", model)


def test_why_a_name_is_not_known_is_told_where_it_shows(make_model: MakeModel) -> None:
    own = {"model_type": "house", "architectures": ["HouseForCausalLM"], "auto_map": {"a": "b"}}
    for values, end in (
        (own, "name, and code from a model directory is not run"),
        ({**own, "auto_map": None}, "name"),
        (
            {"model_type": "bert", "architectures": ["BertModel"]},
            "name, and vectors are those of a decoder's last token",
        ),
    ):
        with pytest.raises(ConfigError, match=f"has no causal decoder of that {end}$"):
            check(make_model(**values))


def test_a_type_that_transformers_reads_as_another_is_left_to_the_worker(
    make_model: MakeModel,
) -> None:
    check(make_model(model_type="mistral", architectures=["MinistralForCausalLM"]))


def test_what_looks_both_ways_is_refused(make_model: MakeModel) -> None:
    model = make_model(is_causal=False)
    refused(f"{model / 'config.json'}: is_causal: must be true", model)


@pytest.mark.parametrize("text", ["", "A = 1", "[(1, 2) if a else 3,\n    ]"])
def test_a_table_that_is_not_read_refuses_nothing(
    text: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict(\n    {text}\n)"
    monkeypatch.setattr(architecture_check, "_texts", lambda *_: [table])
    architecture_check._causal_decoders.cache_clear()
    check(make_model(model_type="bert", architectures=["BertModel"]))
    architecture_check._causal_decoders.cache_clear()


def test_attention_that_is_not_handed_over_is_refused(make_model: MakeModel) -> None:
    model = make_model(model_type="mamba", architectures=["MambaForCausalLM"])
    refused("architectures: MambaForCausalLM is not served: its attention does not go", model)


def test_what_names_no_architecture_is_one_by_its_type(make_model: MakeModel) -> None:
    check(make_model(architectures=None))
    model = make_model(architectures=None, model_type="vit")
    refused("architectures: must name a decoder, or model_type must be that of one", model)
    refused(
        "architectures: MambaForCausalLM is not served",
        make_model(architectures=None, model_type="mamba"),
    )


def test_one_of_several_architectures_is_enough(make_model: MakeModel) -> None:
    check(make_model(architectures=["HouseForCausalLM", DEMO["architectures"][0]]))


@pytest.mark.parametrize(
    ("name", "value", "only"),
    [
        ("tensor_parallel_size", 2, "1"),
        ("quantization", "w8", "none"),
        ("load_format", "dummy", "safetensors"),
    ],
)
def test_what_transformers_runs_is_not_shared_nor_changed(
    name: str, value: Any, only: str, make_model: MakeModel
) -> None:
    model = make_model(model_type="olmo", architectures=["OlmoForCausalLM"])
    check(model)
    refused(
        f"{name}: must be {only} for OlmoForCausalLM, which transformers runs, got {value}",
        model,
        **{name: value},
    )


def test_without_transformers_architectures_are_left_to_the_worker(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architecture_check, "_causal_decoders", dict)
    check(make_model(model_type="bert", architectures=["BertModel"]))


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("num_attention_heads", "LlamaForCausalLM"),
        ("n_head", "GPTJForCausalLM"),
        ("n_heads", "MptForCausalLM"),
    ],
)
def test_heads_are_found_by_every_name(name: str, architecture: str, make_model: MakeModel) -> None:
    model = make_model(**{"num_attention_heads": None, "architectures": [architecture], name: 12})
    check(model, tensor_parallel_size=4)
    refused("tensor_parallel_size: must divide num_atten", model, tensor_parallel_size=8)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "LlamaModel", "Qwen3MoeForCausalLM"])
def test_numbers_of_heads_that_no_family_serves_are_refused(
    architecture: str, make_model: MakeModel
) -> None:
    model = make_model(num_attention_heads=None, architectures=[architecture])
    refused(f"{model / 'config.json'}: num_attention_heads: is missing", model)
    model = make_model(num_key_value_heads=3, architectures=[architecture])
    refused(
        f"num_attention_heads: must be a multiple of num_key_value_heads (3), got {HEADS}", model
    )


def test_numbers_of_heads_that_a_family_does_not_read_are_passed_over(
    make_model: MakeModel,
) -> None:
    check(make_model(num_attention_heads=None, architectures=["GemmaForCausalLM"]))
    check(make_model(num_key_value_heads=3, architectures=["GPTNeoXForCausalLM"]))


# Those of DeepSeek read their experts first.
@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith("Deepseek")])
def test_families_read_the_heads_that_they_are_said_to(name: str, make_model: MakeModel) -> None:
    def read(**values: Any) -> Any:
        model = make_model(use_qkv_bias=False, **values)
        return FAMILIES[name].read(HfConfig.read(model / "config.json"))

    wrong = ""
    try:
        read(num_attention_heads=None)
    except ModelLoadError as error:
        wrong = error.message
    assert ("num_attention_heads: is missing" in wrong) == name.startswith(NEED_HEADS), wrong
    if name.startswith(ONE_KIND_OF_HEADS):
        with suppress(ModelLoadError):  # of other keys
            assert read(num_key_value_heads=3).num_kv_heads != 3


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"device": "cuda", "invariant": True}])
def test_ranks_that_cannot_share_the_parts_of_a_sum_are_refused(
    options: dict[str, Any], make_model: MakeModel
) -> None:
    model = make_model(num_attention_heads=9, num_key_value_heads=9)
    refused("tensor_parallel_size: must divide 8, since", model, tensor_parallel_size=3, **options)


def test_on_gpus_sums_have_as_many_parts_as_there_are_ranks(make_model: MakeModel) -> None:
    check(
        make_model(num_attention_heads=9, num_key_value_heads=9),
        tensor_parallel_size=3,
        device="cuda",
    )


def test_as_many_parts_are_meant_as_the_layers_have() -> None:
    assert MAX_PARTS == partial_sums.MAX_PARTS


@pytest.mark.parametrize("asked", [LONGEST + 1, 9_000_000])
def test_a_longer_sequence_than_the_model_has_is_refused(asked: int) -> None:
    refused(
        f"max_model_len: must be at most the model's {LONGEST}, got {asked}", max_model_len=asked
    )


@pytest.mark.parametrize("name", ["n_positions", "max_seq_len", "max_sequence_length"])
def test_the_longest_is_found_by_every_name(name: str, make_model: MakeModel) -> None:
    model = make_model(**{"max_position_embeddings": None, name: 64})
    check(model, max_model_len=64)
    refused("max_model_len: must be at most the model's 64", model, max_model_len=65)


@pytest.mark.parametrize(
    "values",
    [
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}},
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}},
        {"max_position_embeddings": None},
    ],
)
def test_a_length_that_only_the_worker_knows_is_left_to_it(
    values: dict[str, Any], make_model: MakeModel
) -> None:
    check(make_model(**values), max_model_len=LONGEST + 1)


@pytest.mark.parametrize("size", [1, 4, 12, 255])
def test_blocks_that_no_kernel_serves_are_refused(size: int) -> None:
    check(block_size=8)
    refused(f"block_size: must be a power of two in [8, 256], got {size}", block_size=size)


@pytest.mark.parametrize("name", ["kv_cache_gib", "swap_space"])
def test_more_memory_than_is_free_is_refused(name: str) -> None:
    refused(f"{name}: must be at most the free memory, 4.0 GiB, got 900000 GiB", **{name: 900_000})
    refused(
        f"{name}: must be at most the free memory, 2.0 GiB for each of 2 workers, got 3 GiB",
        **{name: 3, "tensor_parallel_size": 2},
    )


def test_a_cache_on_a_gpu_takes_no_memory_of_the_host() -> None:
    check(kv_cache_gib=70, device="cuda")


def test_weights_beyond_the_free_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = (embedded_model() / "model.safetensors").stat().st_size
    monkeypatch.setattr(model_check, "available_memory_bytes", lambda: stored // 2)
    refused("model: must fit the memory that is free, 0.0 GiB, got 0.0 GiB of weights; --quanti")
    check(device="cuda")
    check(load_format="dummy")
    check(quantization="w4")


def test_a_machine_that_does_not_tell_its_memory_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent() -> int:
        raise ConfigError("kv_cache_gib: must be set")

    monkeypatch.setattr(model_check, "available_memory_bytes", silent)
    check(kv_cache_gib=900_000)


def test_a_cache_that_cpus_do_not_hold_is_refused() -> None:
    check(kv_cache_dtype="int8")
    refused("kv_cache_dtype: must be one of auto, int8 on cpu, got 'fp8'", kv_cache_dtype="fp8")
    check(kv_cache_dtype="fp8", device="cuda")
    held = [name for name, each in KV_CACHE_DTYPES.items() if each in CpuDevice().kv_cache_dtypes]
    assert ("auto", *held) == model_check.CPU_CACHES


@pytest.mark.parametrize("name", ["nvidia0", "dxg", "nvhost-gpu", "nvgpu"])
def test_a_device_that_cuda_may_find_is_no_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_check, "DEVICES", tmp_path)
    (tmp_path / "nvidiactl").write_text("")
    refused("kv_cache_dtype: must be one of auto", kv_cache_dtype="fp8", device="auto")
    (tmp_path / name).write_text("")
    check(kv_cache_dtype="fp8", device="auto")
    refused("kv_cache_dtype: must be one of auto", kv_cache_dtype="fp8", device="cpu")
