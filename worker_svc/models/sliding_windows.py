"""Which layers see only a window of the context, as config.json names them."""

from worker_svc.loading.hf_config import HfConfig

DEFAULT_SLIDING_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28
SLIDING, FULL = "sliding_attention", "full_attention"


def read_sliding_windows(hf: HfConfig, num_layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer of a Qwen, in tokens; None sees everything.

    Raises:
        ModelLoadError: `layer_types` does not name each layer's kind.
    """
    if not hf.flag("use_sliding_window", False):
        return (None,) * num_layers
    window = hf.integer("sliding_window", DEFAULT_SLIDING_WINDOW)
    if "layer_types" not in hf:
        # max_window_layers may be 0, which integer() refuses.
        first = int(hf.number("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS))
        return tuple(window if index >= first else None for index in range(num_layers))
    kinds = read_layer_types(hf, num_layers)
    return tuple(window if kind == SLIDING else None for kind in kinds)


def read_layer_types(
    hf: HfConfig, num_layers: int, full_every: int | None = None
) -> tuple[str, ...]:
    """Return the kind of each layer, SLIDING or FULL.

    Args:
        hf: to read.
        num_layers: of the model.
        full_every: without a list, each such layer sees everything; None wants a list.

    Raises:
        ModelLoadError: `layer_types` does not name each layer's kind.
    """
    if full_every is not None and "layer_types" not in hf:
        return tuple(
            FULL if (index + 1) % full_every == 0 else SLIDING for index in range(num_layers)
        )
    kinds = hf.texts("layer_types")
    if len(kinds) != num_layers or not {SLIDING, FULL} >= set(kinds):
        raise hf.error("layer_types", f"must be {num_layers} of {SLIDING} and {FULL}, got {kinds}")
    return tuple(kinds)
