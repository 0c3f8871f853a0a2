"""What a model's files cannot give is refused before anything starts, and nothing else."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from launch import architecture_check, model_check
from launch.cluster.config import ClusterConfig, embedded_model
from launch.model_check import MAX_PARTS, check_model
from quire.contract.engine_options import GIB
from quire.contract.errors import ConfigError
from worker_svc.layers import partial_sums

DEMO = json.loads((embedded_model() / "config.json").read_text())
HEADS, LONGEST = DEMO["num_attention_heads"], DEMO["max_position_embeddings"]

MakeModel = Callable[..., Path]


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_check, "available_memory_bytes", lambda: 4 * GIB)


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Return what makes a copy of the demo model with other values in its config.json."""

    def make(**values: Any) -> Path:
        model = tmp_path / "model"
        shutil.copytree(embedded_model(), model, dirs_exist_ok=True)
        config = {key: value for key, value in {**DEMO, **values}.items() if value is not None}
        (model / "config.json").write_text(json.dumps(config))
        return model

    return make


def check(model: Path | None = None, **options: Any) -> None:
    ports = {"port": None, "grpc_port": 0, "device": "cpu"}
    check_model(ClusterConfig(model=model or embedded_model(), **{**ports, **options}))


def refused(message: str, model: Path | None = None, **options: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        check(model, **options)


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


@pytest.mark.parametrize("name", ["num_attention_heads", "n_head", "n_heads"])
def test_heads_are_found_by_every_name(name: str, make_model: MakeModel) -> None:
    model = make_model(**{"num_attention_heads": None, name: 12})
    check(model, tensor_parallel_size=4)
    refused("tensor_parallel_size: must divide num_atten", model, tensor_parallel_size=8)


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"device": "cuda", "invariant": True}])
def test_ranks_that_cannot_share_the_parts_of_a_sum_are_refused(
    options: dict[str, Any], make_model: MakeModel
) -> None:
    model = make_model(num_attention_heads=9)
    refused("tensor_parallel_size: must divide 8, since", model, tensor_parallel_size=3, **options)


def test_on_gpus_sums_have_as_many_parts_as_there_are_ranks(make_model: MakeModel) -> None:
    check(make_model(num_attention_heads=9), tensor_parallel_size=3, device="cuda")


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


def test_an_adapter_is_named_with_its_model(tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    for text, of in (
        ('{"base_model_name_or_path": "org/base"}', " of org/base"),
        ("{}", ""),
        ("no JSON", ""),
    ):
        path.write_text(text)
        refused(f"model: must be a whole model, got an adapter{of} in {tmp_path}; merge", tmp_path)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    refused(f"model: must have a config.json or be a .gguf file, got {tmp_path}", tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"num_attention_heads": "8"}', '{"n_positions": 64, "rope_scaling": 3}']
)
def test_a_broken_configuration_is_refused_by_its_name(text: str, make_model: MakeModel) -> None:
    model = make_model()
    (model / "config.json").write_text(text)
    refused(f"{model / 'config.json'}: ", model)


def write_gguf(path: Path, **values: int) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        writer.add_uint32(f"llama.{key.replace('__', '.')}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_says_the_same_of_itself(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", attention__head_count=9, context_length=64)
    for model in (path, tmp_path):  # the file, and the directory that it is alone in
        check(model, max_model_len=64)
        refused("max_model_len: must be at most the model's 64, got", model, max_model_len=65)
        refused("tensor_parallel_size: must divide num_", model, tensor_parallel_size=2)
        refused("tensor_parallel_size: must divide 8", model, tensor_parallel_size=3)


def test_a_stretched_gguf_file_is_left_to_the_worker(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", context_length=64, rope__scaling__original_context_length=32
    )
    check(path, max_model_len=65)


def test_a_broken_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    refused(f"{path}: not a whole GGUF file", path)


def write_tensors(path: Path, num_bytes: int, dtype: str = "F32") -> None:
    """Write the head of a safetensors file of one tensor, and as many bytes as it says, none."""
    head = {"a": {"dtype": dtype, "shape": [num_bytes // 4], "data_offsets": [0, num_bytes]}}
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + num_bytes)


def test_files_that_no_worker_reads_are_passed_over(make_model: MakeModel) -> None:
    model = make_model()
    write_tensors(model / "model.fp32-00001-of-00001.safetensors", 5 * GIB)
    (model / "model-00001-of-00009.safetensors").write_bytes(b"cut off")
    check(model)
    index = {"weight_map": {"a": "model-00001-of-00009.safetensors", "b": "not-there.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(f"model: {model / 'model-00001-of-00009.safetensors'} must be a whole", model)
    for broken in ("[]", "{}", "no JSON", '{"weight_map": {"a": 1}}'):
        (model / "model.safetensors.index.json").write_text(broken)
        refused(f"model: {model / 'model.safetensors.index.json'} must be an index", model)


@pytest.mark.parametrize(
    ("gib", "dtype", "options"),
    [
        (7, "bfloat16", {}),  # of the config, which files of float32 are loaded as
        (7, "float32", {"dtype": "float16"}),
        (15, "float32", {"quantization": "w8"}),
        (30, "float32", {"quantization": "w4"}),
    ],
)
def test_weights_count_as_they_are_held(
    gib: int, dtype: str, options: dict[str, str], make_model: MakeModel
) -> None:
    model = make_model(dtype=dtype, torch_dtype=None)
    write_tensors(model / "model.safetensors", gib * GIB)
    check(model, **options)
    write_tensors(model / "model.safetensors", (gib + 3) * GIB)
    refused("model: must fit the memory that is free, 4.0 GiB", model, **options)
