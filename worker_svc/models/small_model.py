"""Small models: of a configuration's own kinds of layers, with few features and random weights."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import torch

MOST_LAYERS = 4
"""Layers of a small model, unless it has more kinds of them."""

# Of keys of config.json: the largest value, by the first pattern that is found in a key's name.
# None: tokens that a layer sees, the largest of which the caller gives.
_LARGEST = (
    (r"token_id|token_index", 3),
    (r"vocab_size", 160),
    (r"kv_heads|key_value_heads|key_heads|head_kv|query_groups", 2),
    (r"rotary_dim", 8),
    (r"head_dim|dim_head|d_head|head_size|headdim|kv_channels", 16),
    (r"heads?(_per_layer)?$", 4),
    (r"layers?$|num_blocks$", MOST_LAYERS),
    (r"topk_group", 1),
    (r"n_group", 2),
    (r"window|chunk|local_attention|index_topk$", None),
    (r"per_tok|top_k|topk|moe_k$", 2),
    (r"experts$", 4),
    (r"position|n_ctx|seq_len|length|context", 256),
    (r"rank$", 16),
    (r"dim$|size$|width|d_model|n_embd|n_inner|ffn|d_inner", 64),
)
# Of keys that are null in a default configuration, and that some models cannot do without.
_OF_NULL = {"head_dim": 16, "num_key_value_heads": 2, "num_experts_per_tok": 2}
_NOT_ARGUMENTS = (
    "architectures",
    "model_type",
    "transformers_version",
    "id2label",
    "label2id",
    "per_layer_config",
)


def small_config(config: Any, window: int) -> Any:
    """Return the configuration of a small model of the same kinds of layers.

    Args:
        config: of `transformers`.
        window: see `shrink`.
    """
    small = type(config)(**shrink(config.to_dict(), window))
    small.architectures = config.architectures
    for part in {id(small): small, id(small.get_text_config()): small.get_text_config()}.values():
        _fit_factors(part)
    return small


def _fit_factors(config: Any) -> None:
    """Keep as many of the factors of rotary frequencies as there are pairs of features.

    Mutates: config.
    """
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return
    head_dim = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    for own in (rope, *(each for each in rope.values() if isinstance(each, dict))):
        pairs = int(head_dim * own.get("partial_rotary_factor", 1.0)) // 2
        for key, value in own.items():
            if key.endswith("_factor") and isinstance(value, list):
                step = max(1, len(value) // pairs)
                own[key] = value[::step][:pairs]


def shrink(values: Mapping[str, Any], window: int) -> dict[str, Any]:
    """Return the arguments of the configuration of a small model.

    Args:
        values: of a configuration, as `to_dict` returns them.
        window: most tokens of its windows and chunks, and of the keys that it chooses.
    """
    counts = {
        value
        for key, value in values.items()
        if isinstance(value, int) and re.search(r"layers?$", key)
    }
    by_layer: dict[int, dict[str, list[Any]]] = {}
    for key, value in values.items():
        if isinstance(value, list) and len(value) in counts and len(value) > MOST_LAYERS:
            by_layer.setdefault(len(value), {})[key] = value
    layers = {
        key: indices
        for lists in by_layer.values()
        for indices in [_first_of_each_kind(list(lists.values()))]
        for key in lists
    }
    shrunk: dict[str, Any] = {}
    for key, value in values.items():
        if key in _NOT_ARGUMENTS:
            continue
        if isinstance(value, dict) and not key.startswith("rope"):
            # A part of several: its class is found by its model type.
            shrunk[key] = shrink(value, window) | (
                {"model_type": value["model_type"]} if "model_type" in value else {}
            )
        elif key in layers:
            shrunk[key] = [_cut(key, value[index], window) for index in layers[key]]
        elif value is None and key in _OF_NULL:
            shrunk[key] = _OF_NULL[key]
        else:
            shrunk[key] = _cut(key, value, window)
    # Some models are made for as many of both.
    if values.get("num_key_value_heads") == values.get("num_attention_heads") is not None:
        shrunk["num_key_value_heads"] = shrunk["num_attention_heads"]
    return shrunk


def _cut(key: str, value: Any, window: int) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    found = (most for pattern, most in _LARGEST if re.search(pattern, key))
    most = next(found, value)
    return min(value, window if most is None else most)


def _first_of_each_kind(lists: list[list[Any]]) -> list[int]:
    """Return MOST_LAYERS indices, in order, every kind of layer among them if there is room.

    Args:
        lists: of layers; what all of them say of a layer is its kind.
    """
    kinds = [repr(each) for each in zip(*lists, strict=True)]
    indices = sorted(range(len(kinds)), key=lambda index: (kinds[index] in kinds[:index], index))
    return sorted(indices[:MOST_LAYERS])


@torch.no_grad()
def random_model(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model in which attention matters, as it does not with initial weights.

    Args:
        config: of `transformers`.
        dtype: of the model. Weights are those of float32, rounded.
    """
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        auto: Any = AutoModelForCausalLM
        # What is set in a model stands in its configuration.
        model = auto.from_config(copy.deepcopy(config), dtype=torch.float32).eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
    return model.to(dtype)
