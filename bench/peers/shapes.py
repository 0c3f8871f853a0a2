"""The models: random Llamas as Hugging Face directories, the same files for every engine."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 32000
HEAD_SIZE = 64
BYTES = {"bfloat16": 2.0, "float32": 4.0, "int8": 1.0}


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama.

    Attributes:
        name: of the model.
        hidden, layers, heads, kv_heads, intermediate: its sizes; heads are of 64.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int

    @property
    def dense_weights(self) -> int:
        """Weights that every step reads: all but the embedding."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * HEAD_SIZE
        return (
            self.layers * (attention + 3 * self.hidden * self.intermediate)
            + VOCAB_SIZE * self.hidden
        )

    @property
    def kv_elements(self) -> int:
        """Keys and values that the cache has of a token."""
        return 2 * self.layers * self.kv_heads * HEAD_SIZE

    def config(self) -> dict[str, object]:
        """Return config.json. The head is not tied to the embedding."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": HEAD_SIZE,
            "hidden_act": "silu",
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        }


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("125M", 768, 12, 12, 4, 2048),
        # That of TinyLlama (Zhang et al., 2024).
        Shape("1.1B", 2048, 22, 32, 4, 5632),
    )
}


def write_model(shape: Shape, directory: Path) -> Path:
    """Write a model of normal weights in bfloat16, with a tokenizer; one that is there stays.

    Returns:
        The directory.
    """
    done = directory / "config.json"
    if done.exists() and json.loads(done.read_text()) == shape.config():
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    _tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "unk_token": "<unk>",
                "bos_token": "<s>",
                "eos_token": "</s>",
            }
        )
    )
    save_file(_weights(shape), directory / "model.safetensors", metadata={"format": "pt"})
    # Written last: what was interrupted is begun anew.
    done.write_text(json.dumps(shape.config()))
    return directory


def _weights(shape: Shape) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * 0.02).to(torch.bfloat16)

    def ones() -> torch.Tensor:
        return torch.ones(shape.hidden, dtype=torch.bfloat16)

    hidden, heads, kv_heads = shape.hidden, shape.heads * HEAD_SIZE, shape.kv_heads * HEAD_SIZE
    weights = {"model.embed_tokens.weight": normal(VOCAB_SIZE, hidden)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": ones(),
            prefix + "self_attn.q_proj.weight": normal(heads, hidden),
            prefix + "self_attn.k_proj.weight": normal(kv_heads, hidden),
            prefix + "self_attn.v_proj.weight": normal(kv_heads, hidden),
            prefix + "self_attn.o_proj.weight": normal(hidden, heads),
            prefix + "post_attention_layernorm.weight": ones(),
            prefix + "mlp.gate_proj.weight": normal(shape.intermediate, hidden),
            prefix + "mlp.up_proj.weight": normal(shape.intermediate, hidden),
            prefix + "mlp.down_proj.weight": normal(hidden, shape.intermediate),
        }
    return weights | {"model.norm.weight": ones(), "lm_head.weight": normal(VOCAB_SIZE, hidden)}


def _tokenizer() -> Tokenizer:
    """Return one of as many tokens as the models have: special ones, bytes, and made-up words."""
    names = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"Ġw{index}" for index in range(VOCAB_SIZE - len(names))]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer
