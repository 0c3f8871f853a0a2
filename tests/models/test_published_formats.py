"""Checkpoints of GPTQ, AWQ, compressed-tensors and fp8 give the logits of what they stand for.

Each is written here from integers, by loops over bits that share nothing with the reader.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from quire.contract.errors import ModelLoadError
from tests.factories import edit_config, llama_config, save_model
from tests.models.driver import Driver, load_runner

GROUP = 32
# Does not divide intermediate_size: the last group is shorter.
UNEVEN = 64
PROMPT = [5, 9, 77, 30, 31, 8, 100, 12, 60, 3]
Tensors = dict[str, torch.Tensor]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class Layer:
    """Made-up integers [N, K], zeros [N, groups], scales [N, groups] and the group of each k.

    Attributes:
        group_of: [K].
    """

    integers: Ints
    zeros: Ints
    scales: torch.Tensor
    group_of: Ints

    @property
    def weight(self) -> torch.Tensor:
        """By the definition, [N, K] float32."""
        differences = self.integers - self.zeros[:, self.group_of]
        scales = self.scales.double().numpy()[:, self.group_of]
        return torch.from_numpy((differences * scales).astype(np.float32))


@dataclass
class Format:
    """How layers are stored.

    Attributes:
        pack: from a layer to its tensors, by suffix.
        config: quantization_config.
        low: the least integer; there are 2^bits.
        group_size: None for one group of a row.
        shuffles: whether groups hold any elements of K.
        has_zeros: whether zeros differ.
        rows: features with the same scales; None for all.
    """

    pack: Callable[[Layer], Tensors]
    config: dict[str, Any]
    bits: int = 4
    low: int = 0
    group_size: int | None = GROUP
    shuffles: bool = False
    has_zeros: bool = True
    symmetric_zero: int = field(default=0)
    rows: int | None = 1

    @property
    def is_float(self) -> bool:
        """Whether the integers are stored as float8."""
        return self.pack in (float8, float8_of_one_scale, float8_blocks)

    @property
    def quantization_config(self) -> dict[str, Any]:
        """The config with the size of groups, where its format has it."""
        size = -1 if self.group_size is None else self.group_size
        config: dict[str, Any] = json.loads(json.dumps(self.config))
        named_in = config
        if "config_groups" in config:
            named_in = config["config_groups"]["group_0"]["weights"]
        named_in["group_size"] = size
        return config

    def layer(self, rng: np.random.Generator, num_features: int, in_features: int) -> Layer:
        size = self.group_size or in_features
        groups = -(-in_features // size)
        high = self.low + 2**self.bits
        group_of = np.arange(in_features) // size
        if self.shuffles:
            rng.shuffle(group_of)
        zeros = np.full((num_features, groups), self.symmetric_zero)
        if self.has_zeros:
            zeros = rng.integers(max(1, self.low), high, zeros.shape)
        rows = self.rows or num_features
        blocks = rng.uniform(0.2, 1, (-(-num_features // rows), groups)) / 2**self.bits / 4
        scales = torch.from_numpy(blocks.repeat(rows, axis=0)[:num_features]).half()
        integers = rng.integers(self.low, high, (num_features, in_features))
        return Layer(integers, zeros, scales, group_of)


def words(values: Ints, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack unsigned values [M, n] along n into int32, the lowest bits first."""
    count = 32 // bits
    order = order or tuple(range(count))
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % count)))
    result = np.zeros((len(values), padded.shape[1] // count), np.uint32)
    for row in range(len(values)):
        for word in range(result.shape[1]):
            total = 0
            for place, source in enumerate(order):
                total |= int(padded[row, word * count + source]) << (bits * place)
            result[row, word] = total
    return torch.from_numpy(result.view(np.int32))


def gptq(bits: int, less: int, has_g_idx: bool = True) -> Callable[[Layer], Tensors]:
    def pack(layer: Layer) -> Tensors:
        g_idx = {"g_idx": torch.from_numpy(layer.group_of).int()} if has_g_idx else {}
        return {
            **g_idx,
            "qweight": words(layer.integers, bits).t().contiguous(),
            "qzeros": words(layer.zeros.T - less, bits),
            "scales": layer.scales.t().contiguous(),
        }

    return pack


def awq(layer: Layer) -> Tensors:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        "qweight": words(layer.integers.T, 4, order),
        "qzeros": words(layer.zeros.T, 4, order),
        "scales": layer.scales.t().contiguous(),
    }


def packed(has_zeros: bool) -> Callable[[Layer], Tensors]:
    def pack(layer: Layer) -> Tensors:
        tensors = {
            "weight_packed": words(layer.integers + 8, 4),
            "weight_scale": layer.scales,
            "weight_shape": torch.tensor(layer.integers.shape),
        }
        if has_zeros:
            zeros = words((layer.zeros + 8).T, 4).t().contiguous()
            tensors["weight_zero_point"] = zeros
        return tensors

    return pack


def plain_int8(layer: Layer) -> Tensors:
    return {
        "weight": torch.from_numpy(layer.integers).to(torch.int8),
        "weight_scale": layer.scales.float(),
    }


def float8(layer: Layer) -> Tensors:
    """Integers of 4 bits are float8, too."""
    return {
        "weight": torch.from_numpy(layer.integers).float().to(torch.float8_e4m3fn),
        "weight_scale": layer.scales.float(),
    }


def float8_of_one_scale(layer: Layer) -> Tensors:
    """With zeros, which are of no use."""
    scales = layer.scales[:1, 0].float()
    zeros = torch.zeros_like(scales).to(torch.float8_e4m3fn)
    return float8(layer) | {"weight_scale": scales, "weight_zero_point": zeros}


def float8_blocks(layer: Layer) -> Tensors:
    return {
        "weight": float8(layer)["weight"],
        "weight_scale_inv": layer.scales[::GROUP].float(),
    }


def compressed(name: str, bits: int) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int"}}
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


FORMATS = {
    "gptq of 4 bits": Format(gptq(4, 1), {"quant_method": "gptq", "bits": 4}),
    "gptq of 8 bits": Format(gptq(8, 1), {"quant_method": "gptq", "bits": 8}, bits=8),
    "gptq, symmetric, one group": Format(
        gptq(4, 1),
        {"quant_method": "gptq", "bits": 4},
        group_size=None,
        has_zeros=False,
        symmetric_zero=8,
    ),
    "gptq, symmetric, the zero itself": Format(
        gptq(4, 0),
        {"quant_method": "gptq", "bits": 4, "sym": True},
        has_zeros=False,
        symmetric_zero=8,
    ),
    "gptq of 8 bits, symmetric, the zero itself": Format(
        gptq(8, 0),
        {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq"},
        bits=8,
        has_zeros=False,
        symmetric_zero=128,
    ),
    "gptq_v2, symmetric, less 1": Format(
        gptq(4, 1),
        {"quant_method": "gptq", "bits": 4, "sym": True, "checkpoint_format": "gptq_v2"},
        has_zeros=False,
        symmetric_zero=8,
    ),
    "gptq, not symmetric, one zero": Format(
        gptq(4, 1),
        {"quant_method": "gptq", "bits": 4, "sym": False},
        has_zeros=False,
        symmetric_zero=9,
    ),
    "gptq, symmetric in name alone": Format(
        gptq(4, 1), {"quant_method": "gptq", "bits": 4, "sym": True}
    ),
    "gptq with desc_act": Format(
        gptq(4, 1), {"quant_method": "gptq", "bits": 4, "desc_act": True}, shuffles=True
    ),
    "gptq_v2": Format(
        gptq(4, 0), {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}
    ),
    "gptq without g_idx": Format(
        gptq(4, 1, False), {"quant_method": "gptq", "bits": 4}, group_size=UNEVEN
    ),
    "awq with a short group": Format(awq, {"quant_method": "awq", "bits": 4}, group_size=UNEVEN),
    "awq": Format(awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "compressed-tensors of 4 bits": Format(
        packed(False), compressed("pack-quantized", 4), low=-8, has_zeros=False
    ),
    "compressed-tensors of 4 bits with zeros": Format(
        packed(True), compressed("pack-quantized", 4), low=-8
    ),
    "compressed-tensors of 8 bits": Format(
        plain_int8, compressed("int-quantized", 8), 8, -128, None, has_zeros=False
    ),
    "compressed-tensors of float8": Format(
        float8, compressed("float-quantized", 8), 4, -8, None, has_zeros=False
    ),
    "compressed-tensors of float8, one scale": Format(
        *(float8_of_one_scale, compressed("float-quantized", 8), 4, -8, None),
        has_zeros=False,
        rows=None,
    ),
    "fp8 in blocks": Format(
        float8_blocks,
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [GROUP, GROUP]},
        low=-8,
        has_zeros=False,
        rows=GROUP,
    ),
}


def save_both(
    directory: Path,
    form: Format,
    make_config: Callable[..., PreTrainedConfig] = llama_config,
    /,
    **sizes: int,
) -> tuple[Path, Path]:
    """Write a model in a format, and the same with the weights that its integers stand for."""
    stored, plain = directory / "stored", directory / "plain"
    for each in (stored, plain):
        save_model(each, make_config(**{"intermediate_size": 96, **sizes}))
    rng = np.random.default_rng(4)
    tensors = load_file(plain / "model.safetensors")
    in_format = dict(tensors)
    for name, weight in tensors.items():
        if "_proj" in name:
            layer = form.layer(rng, *weight.shape)
            tensors[name] = layer.weight
            del in_format[name]
            parts = form.pack(layer)
            in_format |= {name.removesuffix("weight") + key: part for key, part in parts.items()}
    save_file(tensors, plain / "model.safetensors")
    save_file(in_format, stored / "model.safetensors")
    edit_config(stored, quantization_config=form.quantization_config)
    return stored, plain


def logits(directory: Path, **options: Any) -> torch.Tensor:
    driver = Driver(load_runner(directory, **{"dtype": "float32", **options}))
    driver.add(0, PROMPT)
    driver.step()
    return driver.logits[0].cpu()


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_dequantised_weights(name: str, tmp_path: Path) -> None:
    stored, plain = save_both(tmp_path, FORMATS[name])
    assert torch.equal(logits(stored), logits(plain))


def test_layers_of_two_group_sizes_are_each_read_by_their_scales(tmp_path: Path) -> None:
    form = FORMATS["compressed-tensors of 4 bits"]
    stored, plain = save_both(tmp_path, form)
    config = json.loads(json.dumps(form.quantization_config))
    other = json.loads(json.dumps(config["config_groups"]["group_0"]))
    other["weights"]["group_size"] = GROUP // 2
    config["config_groups"]["group_1"] = other
    edit_config(stored, quantization_config=config)
    assert torch.equal(logits(stored), logits(plain))


def test_weights_may_be_quantised_again(tmp_path: Path) -> None:
    stored, plain = save_both(tmp_path, FORMATS["awq"])
    options = {"quantization": "w8a8"}
    assert torch.equal(logits(stored, **options), logits(plain, **options))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "must be one of gptq, awq, .*, fp8, got 'bi"),
        ({"quant_method": "gptq", "bits": 3}, "bits: must be 4 or 8, got 3"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size: must be a positive"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version: must be gemm, got"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "must be gptq or"),
        ({"quant_method": "fp8"}, "weight_block_size: is missing"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "must be two positive integers, got"),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"},
            "fmt: must be e4m3, got 'e5m2'",
        ),
        (compressed("marlin-24", 4), "format: must be pack-quantized, int-quantized or"),
        (compressed("pack-quantized", 2), "num_bits: must be 4 or 8, got 2"),
    ],
)
def test_what_is_not_served_is_refused(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    edit_config(tmp_path, quantization_config=json.loads(json.dumps(config)))
    with pytest.raises(ModelLoadError, match=words):
        load_runner(tmp_path)


def test_tensors_of_another_shape_are_refused(tmp_path: Path) -> None:
    stored, _ = save_both(tmp_path, FORMATS["awq"])
    tensors = load_file(stored / "model.safetensors")
    name = next(each for each in tensors if each.endswith("qweight"))
    tensors[name] = tensors[name][:-1].contiguous()
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"tensor {name} has shape"):
        load_runner(stored)


@pytest.mark.parametrize(
    ("name", "tensor", "change"),
    [
        ("gptq with desc_act", "g_idx", lambda each: each + 1),
        ("compressed-tensors of 4 bits", "weight_scale", lambda each: each[:-1]),
        ("compressed-tensors of 4 bits with zeros", "weight_zero_point", lambda each: each[:, 1:]),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    name: str, tensor: str, change: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    stored, _ = save_both(tmp_path, FORMATS[name])
    tensors = load_file(stored / "model.safetensors")
    key = next(each for each in tensors if each.endswith(tensor))
    tensors[key] = change(tensors[key]).contiguous()
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"proj.weight: scales .* do not fit a weight of"):
        load_runner(stored)
