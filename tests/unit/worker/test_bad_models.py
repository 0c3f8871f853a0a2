"""Every kind of bad model directory and option is refused with its one line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ConfigError, ModelLoadError
from quire.contract.workers import LoadSpec
from tests.factories import edit_config, llama_config, save_model
from tests.unit.worker.test_loader import edit_weights, load


def no_config(path: Path) -> None:
    (path / "config.json").unlink()


def config_not_json(path: Path) -> None:
    (path / "config.json").write_text('{"architectures": [')


def config_not_an_object(path: Path) -> None:
    (path / "config.json").write_text("[]")


def no_architecture(path: Path) -> None:
    edit_config(path, architectures=None, model_type="vit")


def no_kind_at_all(path: Path) -> None:
    edit_config(path, architectures=[], model_type=None)


def model_type_of_an_encoder(path: Path) -> None:
    edit_config(path, architectures=None, model_type="bert", is_causal=False)


def unsupported_architecture(path: Path) -> None:
    edit_config(path, architectures=["MambaForCausalLM"])


def missing_key(path: Path) -> None:
    edit_config(path, num_hidden_layers=None)


def wrong_type(path: Path) -> None:
    edit_config(path, hidden_size="64")


def quantized(path: Path) -> None:
    edit_config(path, quantization_config={"quant_method": "bitsandbytes"})


def unsupported_activation(path: Path) -> None:
    edit_config(path, hidden_act="mish")


def unsupported_rope(path: Path) -> None:
    edit_config(path, rope_parameters={"rope_type": "axial"})


def unsupported_dtype(path: Path) -> None:
    edit_config(path, dtype="float8_e4m3fn")


def pickle_only(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def no_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


def truncated(path: Path) -> None:
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def corrupt_header(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"\xff" * 64)


def empty_file(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"")


def missing_tensor(path: Path) -> None:
    edit_weights(path, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))  # type: ignore[arg-type, return-value]


def wrong_shape(path: Path) -> None:
    edit_config(path, intermediate_size=96)


def integer_tensor(path: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.norm.weight"
        tensors[name] = tensors[name].to(torch.int8)

    edit_weights(path, edit)


def shard(path: Path) -> dict[str, str]:
    """Turn the checkpoint into one shard with an index; return the index's map."""
    names = load_file(path / "model.safetensors").keys()
    (path / "model.safetensors").rename(path / "model-00001-of-00001.safetensors")
    weight_map = dict.fromkeys(names, "model-00001-of-00001.safetensors")
    write_index(path, weight_map)
    return weight_map


def write_index(path: Path, weight_map: dict[str, str]) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def missing_shard(path: Path) -> None:
    shard(path)
    (path / "model-00001-of-00001.safetensors").unlink()


def shard_outside(path: Path) -> None:
    write_index(path, dict.fromkeys(shard(path), "../model.safetensors"))


def shard_lacks_a_tensor(path: Path) -> None:
    write_index(path, {**shard(path), "model.extra": "model-00001-of-00001.safetensors"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_config, "no config.json"),
        (config_not_json, "config.json: not readable as JSON"),
        (config_not_an_object, "must hold a JSON object"),
        (
            no_architecture,
            "architectures: must name a decoder, or model_type .* of one, got none and 'vit'",
        ),
        (no_kind_at_all, "got none and ''"),
        (model_type_of_an_encoder, "is_causal: must be true"),
        (
            unsupported_architecture,
            "architectures: MambaForCausalLM is not served: model_type llama has",
        ),
        (missing_key, "num_hidden_layers: is missing"),
        (wrong_type, "hidden_size: must be a positive integer, got '64'"),
        (
            quantized,
            "quant_method must be one of gptq, awq, compressed-tensors, fp8, got 'bitsandbytes'",
        ),
        (unsupported_activation, "activation: must be one of silu, .*, got 'mish'"),
        (unsupported_rope, "rope_type: must be one of default, .*, got 'axial'"),
        (
            unsupported_dtype,
            "dtype: must be one of float32, bfloat16, float16, got 'float8_e4m3fn'",
        ),
        (pickle_only, r"only pickled weights \(pytorch_model.bin\).*save_pretrained"),
        (no_weights, "no model.safetensors and no model.safetensors.index.json"),
        (truncated, "model.safetensors: not a whole safetensors file"),
        (corrupt_header, "model.safetensors: not a whole safetensors file"),
        (empty_file, "model.safetensors: not a whole safetensors file"),
        (missing_tensor, "tensor model.layers.1.mlp.up_proj.weight is missing"),
        (
            wrong_shape,
            r"gate_proj.weight has shape \[80, 64\], but config.json asks for \[96, 64\]",
        ),
        (integer_tensor, "tensor model.norm.weight holds I8; only F64, F32, F16, BF16"),
        (missing_shard, "names model-00001-of-00001.safetensors, which is missing"),
        (shard_outside, "'../model.safetensors' is not the name of a file beside it"),
        (shard_lacks_a_tensor, "tensor model.extra is missing, though"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bad_directory_is_refused_with_one_line(
    spoil: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    save_model(tmp_path, llama_config())
    spoil(tmp_path)
    with pytest.raises(ModelLoadError, match=message) as raised:
        load(tmp_path)
    assert "\n" not in raised.value.message


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere: no such directory"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int8"}, "dtype: must be one of auto, float32"),
        ({"load_format": "pt"}, "load_format: must be one of safetensors, dummy, got pt"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype: must be one of auto, fp8, int8, got int4"),
        (
            {"quantization": "int8"},
            "quantization: must be one of none, w8a8, w8, w4, stored, got int8",
        ),
        ({"max_model_len": 0}, r"max_model_len: must be in \[2, 2147483647\], got 0"),
    ],
)
def test_bad_options(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoadOptions(**changes)  # type: ignore[arg-type]


def test_a_rank_is_one_of_its_group() -> None:
    with pytest.raises(ModelLoadError, match=r"tensor_parallel_rank.*2 of 2"):
        LoadSpec("model", tensor_parallel_rank=2, tensor_parallel_size=2)
