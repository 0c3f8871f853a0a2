"""Files that no worker loads are refused before anything starts, by the worker's words."""

import json
from pathlib import Path
from typing import Any

import pytest

from launch import model_check
from launch.cluster.config import embedded_model
from quire.contract.engine_options import GIB
from tests.unit.launch.model_makers import (
    DEMO,
    MakeModel,
    check,
    refused,
    write_gguf,
    write_model,
    write_tensors,
)
from worker_svc.loading import gguf_types, quantized_checkpoint
from worker_svc.loading.quant_method import METHODS

pytestmark = pytest.mark.usefixtures("free_memory")


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
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"num_attention_heads": "8"}',
        '{"n_positions": 64, "rope_scaling": 3}',
    ],
)
def test_a_broken_configuration_is_refused_by_its_name(text: str, make_model: MakeModel) -> None:
    model = make_model()
    (model / "config.json").write_text(text)
    refused(f"{model / 'config.json'}: ", model)


def test_a_gguf_file_says_the_same_of_itself(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    for model in (path, tmp_path):  # the file, and the directory that it is alone in
        check(model, max_model_len=64)
        refused("max_model_len: must be at most the model's 64, got", model, max_model_len=65)
        refused("tensor_parallel_size: must divide num_", model, tensor_parallel_size=2)
        refused("tensor_parallel_size: must divide 8", model, tensor_parallel_size=3)


def test_a_stretched_gguf_file_is_left_to_the_worker(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", rope__scaling__type="yarn")
    check(path, max_model_len=65)


def test_a_gguf_file_that_no_worker_serves_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, kind="mamba")
    refused(f"{path}: general.architecture: must be one of llama, qwen2,", path)
    write_gguf(path, expert_count=8)
    refused(f"{path}: llama.expert_count: must be 0, got 8", path)
    write_gguf(path, attention__logit_scale=2)
    refused(f"{path}: llama.attention.logit_scale: must be absent, got 2", path)
    write_gguf(path, type_name="Q8_1")
    refused(f"{path}: token_embd.weight: must be one of F32, ", path)
    write_gguf(path, type_name="IQ4_NL")
    check(path)
    monkeypatch.setattr(gguf_types, "has_grids", lambda: False)
    refused(f"{path}: token_embd.weight: IQ4_NL needs the package gguf", path)
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:-64])
    refused(f"{path}: not a whole GGUF file: it ends within token_embd.weight", path)


def test_weights_of_gguf_count_as_they_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, elements = write_gguf(tmp_path / "m.gguf", type_name="Q4_0"), 3 * 288
    for options, num_bytes in (
        ({}, 2 * elements),
        ({"dtype": "float32"}, 4 * elements),
        ({"quantization": "w8"}, elements),
    ):
        monkeypatch.setattr(model_check, "available_memory_bytes", lambda: num_bytes)  # noqa: B023
        check(path, **options)
        monkeypatch.setattr(model_check, "available_memory_bytes", lambda: num_bytes - 1)  # noqa: B023
        refused("model: must fit the memory that is free", path, **options)


@pytest.mark.parametrize("method", [*METHODS, "bitnet", None])
def test_a_format_that_no_worker_reads_is_refused(
    method: str | None, make_model: MakeModel
) -> None:
    model = make_model(quantization_config={"quant_method": method} if method else {})
    if method in METHODS:
        check(model)
        check(model, quantization="stored")
    else:
        refused(
            f"{model / 'config.json'}: quantization_config: quant_method must be one of gptq, awq, "
            f"compressed-tensors, fp8, got {method or 'unnamed'!r}",
            model,
        )
        check(model, load_format="dummy")  # which reads none


def test_formats_are_those_that_have_a_reader() -> None:
    assert tuple(quantized_checkpoint._FORMATS) == METHODS


def test_a_format_of_a_model_of_transformers_is_refused(make_model: MakeModel) -> None:
    own = {"model_type": "olmo", "architectures": ["OlmoForCausalLM"]}
    model = make_model(**own, quantization_config={"quant_method": "gptq"})
    refused(f"{model / 'config.json'}: quantization_config: quantized weights are not", model)


def test_stored_integers_are_asked_of_a_model_that_has_them(tmp_path: Path) -> None:
    message = "quantization: must be another than stored for a checkpoint that holds no integers"
    refused(message, quantization="stored")
    refused(message, write_gguf(tmp_path / "m.gguf"), quantization="stored")


def drafts_of(model: Path) -> dict[str, str]:
    return {"speculation": "draft-model", "draft_model": str(model)}


def test_a_draft_model_is_checked_as_the_model_is(tmp_path: Path, make_model: MakeModel) -> None:
    def refused_draft(message: str, draft: Path, **options: Any) -> None:
        refused(f"draft_model: {message}", **drafts_of(draft), **options)

    check(**drafts_of(embedded_model()))
    check(
        **drafts_of(make_model(num_attention_heads=9, num_key_value_heads=9)),
        tensor_parallel_size=2,
    )
    for name in "ab":
        (tmp_path / "two").mkdir(exist_ok=True)
        (tmp_path / "two" / f"{name}.gguf").write_text("")
    refused_draft(f"{tmp_path / 'two'}: must hold one .gguf file, got 2", tmp_path / "two")
    missing = tmp_path / "none"
    refused_draft(f"must be a directory or a .gguf file that exists, got {missing}", missing)
    refused_draft("must have a config.json or be a .gguf file, got", tmp_path)
    vocab_size = DEMO["vocab_size"]
    refused_draft(
        f"vocabulary must be at most the model's {vocab_size} tokens, got {vocab_size + 1}",
        make_model(vocab_size=vocab_size + 1),
    )
    refused_draft(
        "architectures: BertModel is not served",
        make_model(model_type="bert", architectures=["BertModel"]),
    )
    model = make_model()
    write_tensors(model / "model.safetensors", 64, "U16")
    refused_draft("tensor a must be of one of", model)
    write_tensors(model / "model.safetensors", 9 * GIB)
    refused("model: must fit the memory that is free, 4.0 GiB, got", **drafts_of(model))
    check(**drafts_of(model), load_format="dummy")


def test_a_value_of_a_wrong_type_is_of_the_file_that_has_it(
    tmp_path: Path, make_model: MakeModel
) -> None:
    wrong, draft = make_model(vocab_size="many"), drafts_of(embedded_model())
    refused(f"{wrong / 'config.json'}: vocab_size: ", wrong, **draft)
    refused(f"draft_model: {wrong / 'config.json'}: vocab_size: ", **drafts_of(wrong))
    for values in ({"dtype": 5}, {"dtype": None, "torch_dtype": 5}):
        model = write_model(tmp_path / "model", **values)
        refused(f"{model / 'config.json'}: {[*values][-1]}", model)
        refused(f"draft_model: {model / 'config.json'}: {[*values][-1]}", **drafts_of(model))
        check(model, dtype="float32")  # which nothing of the model is read for


def test_a_broken_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    refused(f"{path}: not a whole GGUF file", path)


def test_files_that_no_worker_reads_are_passed_over(make_model: MakeModel) -> None:
    model = make_model()
    write_tensors(model / "model.fp32-00001-of-00001.safetensors", 5 * GIB)
    (model / "model-00001-of-00009.safetensors").write_bytes(b"cut off")
    check(model)
    index = {"weight_map": {"a": "model-00001-of-00009.safetensors", "b": "not-there.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    missing = f"model: {model}: model.safetensors.index.json names not-there.safetensors, which is "
    refused(f"{missing}missing; fetch it again", model)
    check(model, load_format="dummy")
    write_tensors(model / "not-there.safetensors", 64)
    refused(f"model: {model / 'model-00001-of-00009.safetensors'} must be a whole", model)
    for broken in ("[]", "{}", "no JSON", '{"weight_map": {"a": 1}}', "[" * 100_000):
        (model / "model.safetensors.index.json").write_text(broken)
        refused(f"model: {model / 'model.safetensors.index.json'} must be an index", model)


def test_a_model_without_weights_is_refused(make_model: MakeModel) -> None:
    model = make_model()
    (model / "model.safetensors").unlink()
    refused(f"model: {model}: no model.safetensors and no model.safetensors.index.json", model)
    check(model, load_format="dummy")
    (model / "pytorch_model.bin").write_bytes(b"")
    refused(f"model: {model}: only pickled weights (pytorch_model.bin)", model)


@pytest.mark.parametrize(
    "head",
    [b'{"a": {"dtype": ["F32"], "data_offsets": [0, 4]}}', b'{"a": ' + b"[" * 100_000, b"{", b"[]"],
)
def test_a_head_that_says_nothing_is_refused(head: bytes, make_model: MakeModel) -> None:
    path = make_model() / "model.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(64))
    refused(f"model: {path} must be a whole safetensors file, got ", path.parent)


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
