"""Which layers see only a window of the context, as the Qwen configurations say it."""

from worker_svc.loading.hf_config import HfConfig

DEFAULT_SLIDING_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28


def read_sliding_windows(hf: HfConfig, num_layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer; None sees everything.

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
    kinds = hf.texts("layer_types")
    known = {"sliding_attention": window, "full_attention": None}
    if len(kinds) != num_layers or not known.keys() >= set(kinds):
        raise hf.error(
            "layer_types", f"must name {' or '.join(known)} for each of {num_layers} layers"
        )
    return tuple(known[kind] for kind in kinds)
