"""From the metadata of a GGUF file to what config.json would hold.

A key that changes the arithmetic and is not known here is refused: llama.cpp's converter writes
new ones from time to time, and a model without them would be another.

Source: convert_hf_to_gguf.py and src/llama-model.cpp of github.com/ggml-org/llama.cpp.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.contract.errors import ModelLoadError
from quire.gguf_file import GgufFile, GgufTensor
from worker_svc.loading.gguf_types import BLOCK_TYPES
from worker_svc.loading.hf_config import HfConfig

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """What an architecture of GGUF is as a family of ours.

    Attributes:
        architecture: of Hugging Face.
        keys: its own names of metadata, and what config.json calls them.
        large_layers: number of layers of the one model whose queries are scaled by hidden_size /
            num_heads, which no metadata says; None for families without such a model.
        has_post_norms: whether attention and MLP have norms of their results.
        has_shifted_norms: whether weights of norms are stored with 1 added.
        has_interleaved_heads: whether the two halves of each head's query and key are stored in
            turn, since llama.cpp rotates neighbours.
    """

    architecture: str
    keys: dict[str, str]
    large_layers: int | None = None
    has_post_norms: bool = False
    has_shifted_norms: bool = False
    has_interleaved_heads: bool = False


_GEMMA_KEYS = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
# By general.architecture. Mistral's files say llama.
GGUF_FAMILIES = {
    "llama": GgufFamily("LlamaForCausalLM", {}, has_interleaved_heads=True),
    "qwen2": GgufFamily("Qwen2ForCausalLM", {}),
    "qwen3": GgufFamily("Qwen3ForCausalLM", {}),
    "gemma2": GgufFamily(
        "Gemma2ForCausalLM",
        _GEMMA_KEYS,
        large_layers=46,
        has_post_norms=True,
        has_shifted_norms=True,
    ),
    "gemma3": GgufFamily(
        "Gemma3ForCausalLM",
        {**_GEMMA_KEYS, "rope.freq_base_swa": "rope_local_base_freq"},
        large_layers=62,
        has_post_norms=True,
        has_shifted_norms=True,
    ),
    "phi3": GgufFamily("Phi3ForCausalLM", {"attention.sliding_window": "sliding_window"}),
}
_KEYS = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "rope.freq_base": "rope_theta",
}
_REQUIRED = ("block_count", "context_length", "embedding_length", "attention.head_count")
_SIZES = ("attention.key_length", "rope.dimension_count")
_ROPE_KEYS = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
}
# Read by `_head`, `_rope` and `gguf_family`, or without a part in what is computed.
_OTHER_KEYS = (
    "attention.value_length",
    "expert_count",
    "expert_used_count",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.finetuned",
    "vocab_size",
)
_EMBEDDING = "token_embd.weight"
_END_OF_TEXT = ("eos_token_id", "eot_token_id", "eom_token_id")
# Tokens of control that end a turn, whatever id of metadata names them: as llama.cpp has it.
_END_OF_TURN = (
    "<end_of_turn>",
    "<|end|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "</s>",
    "<eos>",
    "<turn|>",
    "<end_of_utterance>",
    "<\uff5cend▁of▁sentence\uff5c>",
    "[e~[",
)
_CONTROL = 3


def gguf_family(file: GgufFile) -> GgufFamily:
    """Return the family of a file.

    Raises:
        ModelLoadError: it has none of ours.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_FAMILIES:
        served = ", ".join(GGUF_FAMILIES)
        raise _error(file, "general.architecture", f"must be one of {served}, got {name!r}")
    if file.metadata.get(f"{name}.expert_count", 0) != 0:
        count = file.metadata[f"{name}.expert_count"]
        raise _error(file, f"{name}.expert_count", f"must be 0, got {count}")
    return GGUF_FAMILIES[name]


def read_gguf_config(file: GgufFile, read: Callable[[GgufTensor], list[float]]) -> HfConfig:
    """Return the configuration of a file's model.

    Args:
        file: the head of the file.
        read: the numbers of a tensor of one dimension.

    Raises:
        ModelLoadError: of another architecture, with metadata that is not served, or without what
            is needed.
    """
    family = gguf_family(file)
    prefix = f"{file.metadata['general.architecture']}."
    own = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    names = _KEYS | family.keys
    for key, value in own.items():
        if key not in names and key not in _ROPE_KEYS and key not in _OTHER_KEYS:
            raise _error(file, prefix + key, f"must be absent, got {value!r}")
    metadata = HfConfig(file.metadata, str(file.path))
    for key in (*_REQUIRED, *(key for key in _SIZES if key in own)):
        metadata.integer(prefix + key)
    config: Config = {names[key]: value for key, value in own.items() if key in names}
    if _EMBEDDING not in file.tensors:
        raise ModelLoadError(f"{file.path}: tensor {_EMBEDDING} is missing")
    config |= {
        "architectures": [family.architecture],
        "vocab_size": file.tensors[_EMBEDDING].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "dtype": _dtype(file, family),
        "eos_token_id": _eos_token_ids(file),
    }
    if family.architecture == "Phi3ForCausalLM" and config.get("sliding_window") == 0:
        del config["sliding_window"]
    _read_heads(file, prefix, own, config)
    _read_rope(file, prefix, own, config, read)
    if family.large_layers is not None:
        is_large = config["num_hidden_layers"] == family.large_layers
        config["query_pre_attn_scalar"] = (
            config["hidden_size"] // config["num_attention_heads"]
            if is_large
            else config["head_dim"]
        )
    return HfConfig(config, str(file.path))


def _read_heads(file: GgufFile, prefix: str, own: Config, config: Config) -> None:
    """Add the size of a head and the share of it that is rotated."""
    head_dim = own.get("attention.key_length")
    rotated = own.get("rope.dimension_count")
    if head_dim is None:
        hidden_size, heads = config["hidden_size"], config["num_attention_heads"]
        if hidden_size < heads:
            problem = f"must be at least the {heads} heads, got {hidden_size}"
            raise _error(file, f"{prefix}embedding_length", problem)
        head_dim = hidden_size // heads
    config["head_dim"] = head_dim
    if own.get("attention.value_length", head_dim) != head_dim:
        value = own["attention.value_length"]
        raise _error(file, f"{prefix}attention.value_length", f"must be {head_dim}, got {value}")
    if rotated is not None and rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim


def _read_rope(
    file: GgufFile,
    prefix: str,
    own: Config,
    config: Config,
    read: Callable[[GgufTensor], list[float]],
) -> None:
    """Add how wavelengths are stretched: by a rule of the metadata, or by tensors of factors."""
    section = {name: own[key] for key, name in _ROPE_KEYS.items() if key in own}
    # As llama.cpp has it where a file has a factor alone.
    default = "linear" if own.get("rope.scaling.factor") else "none"
    kind = own.get("rope.scaling.type", default)
    factors = {
        name: read(file.tensors[f"rope_{key}.weight"])
        for name, keys in (
            ("short_factor", ("freqs", "factors_short")),
            ("long_factor", ("freqs", "factors_long")),
        )
        for key in keys
        if f"rope_{key}.weight" in file.tensors
    }
    if factors:
        # Those of Llama 3 are one tensor for any length.
        kind = "longrope"
        if "rope_freqs.weight" in file.tensors:
            section["attention_factor"] = 1.0
        if "original_max_position_embeddings" in section:
            key = "original_max_position_embeddings"
            config[key] = section.pop(key)
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise _error(
            file, f"{prefix}rope.scaling.type", f"must be none, linear or yarn, got {kind!r}"
        )
    if kind != "none":
        config["rope_scaling"] = {"rope_type": kind, **section, **factors}


def _eos_token_ids(file: GgufFile) -> list[int]:
    """Return the ids that the metadata names, and those of tokens that end a turn."""
    vocab_size = file.tensors[_EMBEDDING].shape[0]
    ids: list[int] = []
    for key in (f"tokenizer.ggml.{name}" for name in _END_OF_TEXT):
        if key in file.metadata:
            number = file.metadata[key]
            if not isinstance(number, int) or not 0 <= number < vocab_size:
                raise _error(file, key, f"must be one of {vocab_size} tokens, got {number!r}")
            ids.append(number)
    lists = [file.metadata.get(f"tokenizer.ggml.{key}", []) for key in ("tokens", "token_type")]
    if not all(isinstance(each, list) for each in lists):
        raise _error(file, "tokenizer.ggml.tokens", "must be a list, as token_type")
    pairs = enumerate(zip(*lists, strict=False))
    ids += [at for at, (text, kind) in pairs if kind == _CONTROL and text in _END_OF_TURN]
    return list(dict.fromkeys(ids))


def _dtype(file: GgufFile, family: GgufFamily) -> str:
    """Return the type of matrices; bfloat16 for those of integers.

    And for Gemma's of float16, in which its activations overflow.
    """
    types = {
        BLOCK_TYPES[tensor.type_id].name
        for tensor in file.tensors.values()
        if len(tensor.shape) > 1
    }
    for dtype, name in (("float32", "F32"), ("float16", "F16")):
        if types == {name} and (name == "F32" or not family.has_shifted_norms):
            return dtype
    return "bfloat16"


def _error(file: GgufFile, key: str, problem: str) -> ModelLoadError:
    return ModelLoadError(f"{file.path}: {key}: {problem}")
