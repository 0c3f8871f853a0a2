"""Frequencies of every kind against transformers' own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from quire.contract.errors import ModelLoadError
from tests.factories import llama_config, rope
from worker_svc.layers.rope_scaling import RopeParameters, rope_frequencies
from worker_svc.loading.hf_config import HfConfig

HEAD_DIM = 16
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS = {"short_factor": [1.5] * 8, "long_factor": [2.5] * 8}


def read(values: dict[str, Any]) -> RopeParameters:
    return RopeParameters.read(HfConfig(values, "config.json"), 256)


@pytest.mark.parametrize(
    "numbers",
    [
        rope("linear", factor=3.0),
        rope("dynamic", factor=3.0),
        rope("yarn", factor=4.0),
        rope("yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=8.0),
        rope("yarn", factor=4.0, mscale=0.7, mscale_all_dim=0.9, truncate=False),
        rope("yarn", factor=4.0, attention_factor=1.3),
        rope("llama3", factor=8.0, original_max_position_embeddings=32, **LLAMA3),
        rope("longrope", factor=2.0, original_max_position_embeddings=128, **FACTORS),
        rope("longrope", attention_factor=1.1, original_max_position_embeddings=128, **FACTORS),
    ],
    ids=lambda numbers: numbers["rope_type"],
)
def test_equal_to_transformers(numbers: dict[str, Any]) -> None:
    config = llama_config(rope_parameters=dict(numbers))
    kind = numbers["rope_type"]
    expected, scale = ROPE_INIT_FUNCTIONS[kind](config, seq_len=256)
    ours, our_scale = rope_frequencies(read({"rope_parameters": numbers}), HEAD_DIM, 256)
    assert torch.allclose(ours, expected, rtol=1e-6)
    assert our_scale == pytest.approx(scale)


def test_old_style_keys_mean_the_same() -> None:
    old = {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}}
    assert torch.equal(
        rope_frequencies(read(old), HEAD_DIM, 256)[0], rope_frequencies(read(new), HEAD_DIM, 256)[0]
    )


def test_longrope_is_chosen_by_the_limit_alone() -> None:
    parameters = read(
        {"rope_parameters": rope("longrope", original_max_position_embeddings=128, **FACTORS)}
    )
    short, _ = rope_frequencies(parameters, HEAD_DIM, 128)
    long, _ = rope_frequencies(parameters, HEAD_DIM, 129)
    assert torch.allclose(short * 1.5, long * 2.5)


@pytest.mark.parametrize(
    ("numbers", "longest"),
    [
        (rope("default"), 256),
        (rope("linear", factor=2.0), 512),
        (rope("dynamic", factor=2.0), 512),
        (rope("yarn", factor=4.0, original_max_position_embeddings=128), 512),
        (rope("llama3", factor=8.0, **LLAMA3), 256),
    ],
    ids=lambda value: str(value)[:24],
)
def test_max_context(numbers: dict[str, Any], longest: int) -> None:
    assert read({"rope_parameters": numbers}).max_context == longest


def test_unserved_kind_is_refused_by_name() -> None:
    with pytest.raises(ModelLoadError, match=r"rope_type: must be one of .*llama3.*, got 'axial'"):
        read({"rope_scaling": {"rope_type": "axial"}})


def test_missing_number_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"rope_scaling": {"type": "linear"}}))
    parameters = RopeParameters.read(HfConfig.read(tmp_path / "config.json"), 256)
    with pytest.raises(ModelLoadError, match=r"config.json: rope_scaling: factor: is missing"):
        rope_frequencies(parameters, HEAD_DIM, 256)
