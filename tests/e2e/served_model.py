"""Tiny random models that a whole cluster can serve, and transformers beside it."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.factories import CONFIGS, save_model
from tests.fakes.small_tokenizers import byte_level

VOCAB_SIZE = 480


def save_served_model(directory: Path, family: str) -> Path:
    """A tiny random model of a family with a tokenizer beside it."""
    save_model(directory, CONFIGS[family](vocab_size=VOCAB_SIZE))
    byte_level(VOCAB_SIZE).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return directory


def load_reference(directory: Path) -> PreTrainedModel:
    """The model as transformers computes it, in float32.

    Mutates: torch's number of threads here, since the cluster has the other cores.
    """
    torch.set_num_threads(1)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model
