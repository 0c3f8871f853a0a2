"""GGUF files of tiny models, by the package gguf, and what their tensors stand for."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.factories import edit_config

Bytes = NDArray[np.uint8]
Type = gguf.GGMLQuantizationType
# Types that the package does not write: their blocks are made up, with scales like these.
_SCALES = {
    Type.Q2_K: {80: 5e-3, 82: 1e-3},
    Type.Q3_K: {108: 5e-4},
    Type.Q4_K: {0: 1e-4, 2: 1e-3},
    Type.Q5_K: {0: 5e-5, 2: 1e-3},
    Type.Q6_K: {208: 5e-5},
    Type.IQ1_S: {0: 5e-3},
    Type.IQ2_XXS: {0: 5e-4},
    Type.IQ2_XS: {0: 5e-4},
    Type.IQ2_S: {0: 5e-4},
    Type.IQ3_XXS: {0: 5e-4},
    Type.IQ3_S: {0: 5e-4},
    Type.IQ4_NL: {0: 5e-4},
    Type.IQ4_XS: {0: 5e-5},
}


def stored(weight: torch.Tensor, kind: Type, rng: np.random.Generator) -> NDArray[Any]:
    """Return rows [N, ...] of a type: of a weight [N, K], or of made-up blocks."""
    if kind not in _SCALES:
        return gguf.quants.quantize(weight.float().numpy(), kind)
    elements, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (len(weight), weight.shape[1] // elements, num_bytes), np.uint8)
    for at, scale in _SCALES[kind].items():
        halves = (scale * rng.uniform(0.5, 1, blocks.shape[:2])).astype(np.float16)
        blocks[:, :, at : at + 2] = halves[:, :, None].view(np.uint8)
    return blocks.reshape(len(weight), -1)


def in_turn(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Put the two halves of each head's rows in turn, as llama.cpp's converter does."""
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write_gguf(
    directory: Path,
    path: Path,
    architecture: str,
    kinds: tuple[Type, ...] = (Type.F32,),
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, NDArray[Any]] | None = None,
) -> None:
    """Write a model directory as a GGUF file, and its weights as they are in that file.

    Args:
        directory: of the model; its tensors become what those of the file stand for.
        path: of the file.
        architecture: general.architecture.
        kinds: types of the matrices, in turn.
        metadata: further values, by key.
        tensors: further ones, by name.
    """
    config = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_eos_token_id(config["eos_token_id"])
    for key, value in (metadata or {}).items():
        kind = gguf.GGUFValueType.get_type(value)
        sub_type = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
        writer.add_key_value(key, value, kind, sub_type)
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture),
        config["num_hidden_layers"],
    )
    rng = np.random.default_rng(5)
    weights = load_file(directory / "model.safetensors")
    for index, (name, weight) in enumerate(weights.items()):
        kind = kinds[index % len(kinds)] if weight.ndim == 2 else Type.F32
        shift = 1.0 if "norm" in name and architecture.startswith("gemma") else 0.0
        rows = stored(weight.float() + shift, kind, rng)
        weights[name] = torch.from_numpy(gguf.quants.dequantize(rows, kind).copy()) - shift
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            rows = in_turn(rows, heads if "q_proj" in name else kv_heads)
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        writer.add_tensor(own, rows, raw_dtype=kind)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    save_file(weights, directory / "model.safetensors")
    edit_config(directory, dtype=None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokenizer_metadata(directory: Path) -> dict[str, Any]:
    """Return what GGUF holds of a byte-level tokenizer.json whose only special token ends texts."""
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    end = tokens.index("<|endoftext|>")
    special = int(gguf.TokenType.CONTROL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.token_type": [special if each == end else 1 for each in range(len(tokens))],
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.chat_template": "{% for each in messages %}{{ each.content }}{% endfor %}",
    }
