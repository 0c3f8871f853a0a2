"""What a layer of the fallback sees is what its mask says, at the length that is served."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    MiniMaxM3VLTextConfig,
    OlmoConfig,
    PhimoeConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
)
from transformers.masking_utils import (
    create_causal_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)
from transformers.models.olmo import modeling_olmo

from quire.contract.errors import ModelLoadError
from tests.factories import VOCAB_SIZE, save_model
from tests.models.driver import Driver, load_runner
from worker_svc.models.probe import TOLERANCE, relative_error

WINDOW = 64
LENGTH = 200
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def phimoe_config() -> PreTrainedConfig:
    """Every layer has a window, which is in the mask alone."""
    return PhimoeConfig(**SIZES, num_local_experts=4, sliding_window=WINDOW)


def qwen2_moe_config() -> PreTrainedConfig:
    """The first layer has a window, which is in the mask alone."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen2MoeConfig(
        **SIZES,
        **experts,
        shared_expert_intermediate_size=32,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=1,
    )


def olmo_config() -> PreTrainedConfig:
    """No window; the mask is replaced."""
    return OlmoConfig(**SIZES, sliding_window=WINDOW, attention_chunk_size=WINDOW)


def error_behind_the_window(directory: Path) -> float:
    """Return the error of the last logits of a text that is three windows long."""
    text = torch.randint(3, VOCAB_SIZE, (LENGTH,), generator=torch.Generator().manual_seed(1))
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        expected = model(text.unsqueeze(0)).logits[0, -1:]
    driver = Driver(load_runner(directory, dtype="float32"))
    driver.add(1, text.tolist())
    driver.step()
    return relative_error(driver.logits[1].unsqueeze(0), expected)


@pytest.mark.parametrize("make", [phimoe_config, qwen2_moe_config])
def test_a_window_that_is_in_the_mask_alone_is_obeyed(
    make: Callable[[], PreTrainedConfig], tmp_path: Path
) -> None:
    save_model(tmp_path, make())
    assert error_behind_the_window(tmp_path) < TOLERANCE[torch.float32]


def test_the_mask_decides_whatever_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, olmo_config())
    assert error_behind_the_window(tmp_path) < TOLERANCE[torch.float32]
    monkeypatch.setattr(modeling_olmo, "create_causal_mask", create_sliding_window_causal_mask)
    assert error_behind_the_window(tmp_path) < TOLERANCE[torch.float32]


def test_a_mask_that_is_no_window_is_refused_unless_no_sequence_is_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, olmo_config())
    monkeypatch.setattr(modeling_olmo, "create_causal_mask", create_chunked_causal_mask)
    with pytest.raises(ModelLoadError, match="its attention uses a mask that is not a window's"):
        load_runner(tmp_path)
    load_runner(tmp_path, max_model_len=WINDOW)

    def without_every_third(**options: Any) -> Any:
        def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
            return (key % 3 != 0) | (query == key)

        return create_causal_mask(**options, and_mask_function=seen)

    monkeypatch.setattr(modeling_olmo, "create_causal_mask", without_every_third)
    with pytest.raises(ModelLoadError, match="its attention uses a mask that is not a window's"):
        load_runner(tmp_path)


def test_blocks_that_a_model_chooses_are_refused_by_name(tmp_path: Path) -> None:
    config = MiniMaxM3VLTextConfig(
        **SIZES,
        head_dim=16,
        dense_intermediate_size=80,
        shared_intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=["full_attention", "minimax_m3_sparse"],
    )
    save_model(tmp_path, config)
    with pytest.raises(ModelLoadError, match="its attention uses block_indices"):
        load_runner(tmp_path)


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        ({"bias_of_tomorrow": 1.0}, True),
        ({"bias_of_tomorrow": None}, False),
        ({"is_causal": False}, True),
        ({"is_causal": True}, False),
    ],
)
def test_arguments_of_attention_that_are_not_known_are_refused_by_name(
    given: dict[str, Any], is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, olmo_config())
    forward = modeling_olmo.OlmoAttention.forward
    monkeypatch.setattr(
        modeling_olmo.OlmoAttention,
        "forward",
        lambda self, *args, **options: forward(self, *args, **options, **given),
    )
    if not is_refused:
        load_runner(tmp_path)
        return
    [name] = given
    with pytest.raises(ModelLoadError, match=f"its attention uses {name}"):
        load_runner(tmp_path)
