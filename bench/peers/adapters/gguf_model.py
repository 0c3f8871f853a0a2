"""A model directory as one GGUF file, which llama.cpp reads: `gguf_model.py DIRECTORY FILE`."""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

FORMATS = {"bfloat16": "BF16", "float32": "F32", "int8": "Q8_0"}
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
}


def gguf_name(name: str) -> str:
    """Return what GGUF calls a weight, such as blk.3.attn_q.weight."""
    parts = name.removeprefix("model.").removesuffix(".weight").split(".")
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{_NAMES['.'.join(parts[2:])]}.weight"
    return f"{_NAMES['.'.join(parts)]}.weight"


def write_gguf(model: Path, target: Path, dtype: str, *, with_text: bool = False) -> None:
    """Write a Llama.

    Args:
        model: Hugging Face directory, one file of weights.
        target: file to write.
        dtype: of the matrices; norms are float32.
        with_text: with the model's own tokenizer, of GPT-2's kind. Else prompts are token ids.
    """
    config = json.loads((model / "config.json").read_text())
    kind = gguf.GGMLQuantizationType[FORMATS[dtype]]
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(str(partial), "llama", use_temp_file=True)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    rope = config.get("rope_parameters", config)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    if with_text:
        _add_tokenizer(writer, json.loads((model / "tokenizer.json").read_text()), config)
    else:
        _add_no_tokenizer(writer, config["vocab_size"])
    with safe_open(model / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - not a mapping
            weight = weights.get_tensor(name).to(torch.float32).numpy()
            if "q_proj" in name or "k_proj" in name:
                weight = _interleave(weight, config["head_dim"])
            own = kind if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
            data = gguf.quants.quantize(weight, own)
            writer.add_tensor(gguf_name(name), data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def _interleave(weight: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Put the two halves of each head's rows in turn: GGUF's Llamas rotate neighbours."""
    rows, columns = weight.shape
    halves = weight.reshape(rows // size, 2, size // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def _add_tokenizer(
    writer: gguf.GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]
) -> None:
    """Add a model's own: pairs of bytes, split as GPT-2 does, with no token before a text."""
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    special = {each["content"] for each in tokenizer["added_tokens"] if each["special"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [
        gguf.TokenType.CONTROL if each in special else gguf.TokenType.NORMAL for each in tokens
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _add_no_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """Add one of special tokens, bytes and made-up words; prompts are token ids."""
    special = ["<unk>", "<s>", "</s>"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256
    kinds += [gguf.TokenType.NORMAL] * (vocab_size - len(tokens))
    tokens += [f"▁w{index}" for index in range(vocab_size - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(vocab_size)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]), "bfloat16", with_text=True)
