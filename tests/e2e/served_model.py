"""Tiny random models that a whole cluster can serve."""

import json
from pathlib import Path

from tests.factories import CONFIGS, save_model
from tests.fakes.small_tokenizers import byte_level

VOCAB_SIZE = 480


def save_served_model(directory: Path, family: str) -> Path:
    """A tiny random model of a family with a tokenizer beside it."""
    save_model(directory, CONFIGS[family](vocab_size=VOCAB_SIZE))
    byte_level(VOCAB_SIZE).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
    )
    return directory
