"""A model of a GGUF file gives the logits of its weights, dequantised, in safetensors."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedConfig

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from tests.factories import (
    edit_config,
    gemma2_config,
    gemma3_config,
    llama_config,
    phi3_config,
    qwen2_config,
    qwen3_config,
    save_model,
)
from tests.gguf_files import Type, write_gguf
from tests.models.driver import Driver, load_runner
from worker_svc.layers.rope_scaling import RopeParameters, rope_frequencies
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup

PROMPT = [5, 9, 77, 30, 31, 8, 100, 12, 60, 3, 44, 90]
# All rows are whole blocks.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}


def logits(model: Path, **options: Any) -> torch.Tensor:
    driver = Driver(load_runner(model, **{"dtype": "float32", **options}))
    driver.add(0, PROMPT)
    driver.step()
    return driver.logits[0]


def test_a_grid_that_is_not_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, path = save_model(tmp_path / "plain", llama_config(**WIDE)), tmp_path / "m.gguf"
    write_gguf(plain, path, "llama", (Type.Q8_0, Type.IQ3_S))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelLoadError) as caught:
        info(path)
    assert str(caught.value).endswith(
        "IQ3_S needs the package gguf, which holds its grid: pip install 'quire-serve[gguf]'"
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "kinds",
    [
        (Type.F32,),
        (Type.F16,),
        (Type.BF16,),
        (Type.Q8_0,),
        (Type.Q4_0,),
        (Type.Q4_1,),
        (Type.Q4_K,),
        (Type.Q6_K,),
        (Type.Q4_K, Type.Q6_K, Type.Q8_0, Type.F16),
        (Type.Q2_K, Type.Q3_K, Type.Q5_K, Type.Q5_0, Type.Q5_1),
        (Type.TQ1_0, Type.TQ2_0, Type.MXFP4),
        (Type.IQ4_NL, Type.IQ4_XS, Type.IQ3_S, Type.IQ3_XXS, Type.IQ2_S, Type.IQ1_S),
        (Type.IQ2_XS, Type.IQ2_XXS),
    ],
    ids=lambda kinds: "+".join(kind.name for kind in kinds),
)
def test_logits_are_those_of_the_dequantised_weights(
    kinds: tuple[Type, ...], tmp_path: Path
) -> None:
    plain, path = save_model(tmp_path / "plain", llama_config(**WIDE)), tmp_path / "m.gguf"
    write_gguf(plain, path, "llama", kinds)
    assert torch.equal(logits(path), logits(plain))


GEMMA3_LAYERS = [*["sliding_attention"] * 5, "full_attention", "sliding_attention"]
FAMILIES: dict[str, tuple[str, Callable[..., PreTrainedConfig], dict[str, Any]]] = {
    "llama with biases": ("llama", llama_config, {"attention_bias": True}),
    "qwen2": ("qwen2", qwen2_config, {}),
    "qwen3": ("qwen3", qwen3_config, {}),
    "gemma2": ("gemma2", gemma2_config, {}),
    "gemma3": ("gemma3", gemma3_config, {"num_hidden_layers": 7, "layer_types": GEMMA3_LAYERS}),
    "phi3": ("phi3", phi3_config, {}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_read(name: str, tmp_path: Path) -> None:
    architecture, make, overrides = FAMILIES[name]
    config = make(**overrides)
    plain, path = save_model(tmp_path / "plain", config), tmp_path / "m.gguf"
    prefix = f"{architecture}."
    values: dict[str, Any] = {
        f"{prefix}rope.freq_base": 1_000_000.0 if architecture == "gemma3" else 10_000.0
    }
    if architecture == "phi3":
        values |= {f"{prefix}rope.dimension_count": 12}
    if architecture.startswith("gemma"):
        values |= {f"{prefix}attention.sliding_window": config.sliding_window}
        edit_config(plain, query_pre_attn_scalar=config.head_dim)
    if architecture == "gemma2":
        values |= {f"{prefix}attn_logit_softcapping": config.attn_logit_softcapping}
        values |= {f"{prefix}final_logit_softcapping": config.final_logit_softcapping}
    write_gguf(plain, path, architecture, (Type.BF16,), values)
    assert torch.equal(logits(path), logits(plain))


def test_factors_of_wavelengths_are_those_of_llama3(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    plain, path = save_model(tmp_path / "plain", llama_config()), tmp_path / "m.gguf"
    unscaled = logits(plain)
    edit_config(plain, rope_parameters=scaling)
    frequencies: list[NDArray[np.float32]] = []
    for section in (scaling, {"rope_theta": 10_000.0}):
        rope = RopeParameters.read(HfConfig({"rope_parameters": section}, "test"), 256)
        frequencies.append(rope_frequencies(rope, 16, 256)[0].numpy())
    factors = frequencies[1] / frequencies[0]
    assert factors.max() > 2
    write_gguf(plain, path, "llama", tensors={"rope_freqs.weight": factors})
    torch.testing.assert_close(logits(path), logits(plain))
    assert not torch.allclose(logits(path), unscaled, rtol=1e-3, atol=1e-3)


def test_a_stretched_phi3_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    factors = {
        f"{name}_factor": rng.uniform(1, 4, 6).astype(np.float32) for name in ("short", "long")
    }
    plain, path = save_model(tmp_path / "plain", phi3_config()), tmp_path / "m.gguf"
    tensors = {
        f"rope_factors_{name}.weight": factors[f"{name}_factor"] for name in ("short", "long")
    }
    values = {
        "phi3.rope.dimension_count": 12,
        "phi3.rope.scaling.original_context_length": 64,
        "phi3.rope.scaling.attn_factor": 1.25,
    }
    write_gguf(plain, path, "phi3", metadata=values, tensors=tensors)
    lists = {name: values.tolist() for name, values in factors.items()}
    edit_config(
        plain,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope",
            "partial_rotary_factor": 0.75,
            "attention_factor": 1.25,
            **lists,
        },
    )
    for length in (64, 256):
        assert torch.equal(logits(path, max_model_len=length), logits(plain, max_model_len=length))


def test_a_directory_may_hold_the_file_and_weights_be_quantised_again(tmp_path: Path) -> None:
    plain = save_model(tmp_path / "plain", llama_config(**WIDE))
    (tmp_path / "other").mkdir()
    write_gguf(plain, tmp_path / "other/m.gguf", "llama", (Type.Q8_0,))
    options = {"quantization": "w8a8", "dtype": "bfloat16"}
    assert torch.equal(logits(tmp_path / "other", **options), logits(plain, **options))


def info(model: Path) -> Any:
    return load_model(LoadSpec(str(model), LoadOptions()), "tiny", ParallelGroup()).info


def test_ids_and_types_follow_the_format(tmp_path: Path) -> None:
    plain = save_model(tmp_path / "plain", llama_config(**WIDE))
    paths = [tmp_path / f"{kind}.gguf" for kind in ("F32", "F16", "Q8_0", "Q4_0")]
    for path in paths:
        write_gguf(plain, path, "llama", (Type[path.stem],))
    infos = [info(path) for path in paths]
    assert [each.dtype for each in infos] == ["float32", "float16", "bfloat16", "bfloat16"]
    assert {each.eos_token_ids for each in infos} == {(2,)}
    assert len({each.numerics_id for each in infos}) == len(paths)
    assert info(paths[2]).numerics_id == infos[2].numerics_id
    values = paths[2].read_bytes()
    paths[2].write_bytes(values[:-1] + bytes([values[-1] ^ 1]))
    assert info(paths[2]).numerics_id != infos[2].numerics_id


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"llama.expert_count": 8}, "llama.expert_count: must be 0, got 8"),
        ({"llama.attention.scale": 0.5}, "llama.attention.scale: must be absent, got 0.5"),
        ({"llama.rope.scaling.type": "other"}, "rope.scaling.type: must be none, linear or yarn"),
        ({"split.count": 2}, "split.count: must be 1, got 2; merge the shards"),
        ({"tokenizer.ggml.eot_token_id": -1}, "ggml.eot_token_id: must be one of .*, got -1"),
        ({"tokenizer.ggml.eom_token_id": 9**6}, "ggml.eom_token_id: must be one of .*, got 531441"),
        ({"llama.attention.key_length": 0}, "key_length: must be a positive integer, got 0"),
        ({"llama.rope.dimension_count": "x"}, "dimension_count: must be a positive integer, got"),
        ({"llama.attention.head_count": "x"}, "head_count: must be a positive integer, got 'x'"),
        ({"llama.attention.head_count": 0}, "head_count: must be a positive integer, got 0"),
        ({"llama.embedding_length": [1]}, r"embedding_length: must be a positive integer, got \["),
        ({"general.architecture": ["llama"]}, r"architecture: must be one of llama, .* got \["),
    ],
)
def test_metadata_that_is_not_served_is_refused(
    metadata: dict[str, Any], words: str, tmp_path: Path
) -> None:
    plain, path = save_model(tmp_path / "plain", llama_config()), tmp_path / "m.gguf"
    write_gguf(plain, path, "llama", metadata=metadata)
    with pytest.raises(ModelLoadError, match=words):
        info(path)


def test_other_architectures_types_and_broken_files_are_refused(tmp_path: Path) -> None:
    plain, path = save_model(tmp_path / "plain", llama_config()), tmp_path / "m.gguf"
    write_gguf(plain, path, "deepseek")
    with pytest.raises(ModelLoadError, match=r"general.architecture: must be one of llama, qwen2"):
        info(path)
    extra = np.zeros((1, 40), np.uint8)
    write_gguf(plain, path, "llama")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("token_embd.weight", extra, raw_dtype=Type.Q8_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ModelLoadError, match=r"token_embd.weight: must be one of F32, .*, got Q8_1"
    ):
        info(path)
    write_gguf(plain, path, "llama")
    whole = path.read_bytes()
    for length in (0, 3, 40, 300, 2000, len(whole) - 1000):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError, match="not a whole GGUF file"):
            info(path)
    path.write_bytes(whole)
    (tmp_path / "n.gguf").write_bytes(whole)
    with pytest.raises(ModelLoadError, match=r": must hold one \.gguf file, got 2$"):
        info(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "make", "tensor"),
    [
        ("llama", llama_config, "blk.0.attn_q.bias"),
        ("llama", llama_config, "blk.0.attn_q_norm.weight"),
        ("llama", llama_config, "output.bias"),
        ("gemma3", gemma3_config, "output.bias"),
    ],
)
def test_tensors_that_have_no_place_are_refused(
    architecture: str, make: Callable[..., PreTrainedConfig], tensor: str, tmp_path: Path
) -> None:
    plain, path = save_model(tmp_path / "plain", make()), tmp_path / "m.gguf"
    write_gguf(plain, path, architecture, tensors={tensor: np.zeros(16, np.float32)})
    with pytest.raises(ModelLoadError, match=f"{tensor}: must be absent, got a tensor that"):
        info(path)


def test_heads_without_features_are_refused(tmp_path: Path) -> None:
    plain, path = save_model(tmp_path / "plain", llama_config()), tmp_path / "m.gguf"
    edit_config(plain, head_dim=None)
    write_gguf(plain, path, "llama", metadata={"llama.embedding_length": 1})
    with pytest.raises(ModelLoadError, match="embedding_length: must be at least the 4 heads, got"):
        info(path)


def test_empty_tensors_are_refused(tmp_path: Path) -> None:
    plain, path = save_model(tmp_path / "plain", llama_config()), tmp_path / "m.gguf"
    write_gguf(plain, path, "llama", tensors={"rope_freqs.weight": np.zeros(0, np.float32)})
    with pytest.raises(ModelLoadError, match=r"rope_freqs.weight: rows must be whole .* got \[0\]"):
        info(path)


def test_tokens_that_end_a_turn_end_texts(tmp_path: Path) -> None:
    plain, path = save_model(tmp_path / "plain", llama_config()), tmp_path / "m.gguf"
    tokens = ["<unk>", "<s>", "</s>", "<|im_end|>", "<end_of_turn>", "<|eot_id|>"]
    values = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [2, 3, 3, 3, 1, 3]}
    write_gguf(plain, path, "llama", metadata={**values, "tokenizer.ggml.eot_token_id": 3})
    assert info(path).eos_token_ids == (2, 3, 5)


@pytest.mark.parametrize(
    "text",
    [
        *("</s>", "<eos>", "[EOT]", "[EOS]", "<EOT>", "_<EOT>", "<turn|>", "[e~["),
        *("<end_of_utterance>", "<\uff5cend▁of▁sentence\uff5c>"),
    ],
)
def test_tokens_of_control_that_llama_cpp_ends_at_end_texts(text: str, tmp_path: Path) -> None:
    plain, path = save_model(tmp_path / "plain", llama_config()), tmp_path / "m.gguf"
    values = {
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "x", "y", text],
        "tokenizer.ggml.token_type": [2, 3, 3, 3, 3],
    }
    write_gguf(plain, path, "llama", metadata=values)
    assert info(path).eos_token_ids == (2, 4)


def test_a_window_of_0_is_none(tmp_path: Path) -> None:
    plain, path = save_model(tmp_path / "plain", phi3_config()), tmp_path / "m.gguf"
    values = {"phi3.rope.dimension_count": 12, "phi3.attention.sliding_window": 0}
    write_gguf(plain, path, "phi3", metadata=values)
    edit_config(plain, sliding_window=None)
    assert torch.equal(logits(path), logits(plain))


def test_a_factor_alone_stretches_linearly(tmp_path: Path) -> None:
    plain, path = save_model(tmp_path / "plain", llama_config()), tmp_path / "m.gguf"
    write_gguf(plain, path, "llama", metadata={"llama.rope.scaling.factor": 4.0})
    scaling = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    edit_config(plain, rope_parameters=scaling)
    assert torch.equal(logits(path), logits(plain))


def test_gemma_of_float16_is_computed_in_bfloat16(tmp_path: Path) -> None:
    plain, path = save_model(tmp_path / "plain", gemma2_config()), tmp_path / "m.gguf"
    write_gguf(plain, path, "gemma2", (Type.F16,))
    assert info(path).dtype == "bfloat16"
    loaded = load_model(LoadSpec(str(path), LoadOptions(dtype="float16")), "", ParallelGroup())
    assert loaded.info.dtype == "float16"
