"""Which formats of checkpoints with integers or float8 in the place of weights are served.

Apart from their readers, since a model is checked before torch is loaded.
"""

from pathlib import Path

from quire.contract.errors import ModelLoadError
from worker_svc.loading.hf_config import HfConfig

CONFIG_KEY = "quantization_config"
# Of them, quantized_checkpoint.py has a reader each.
METHODS = ("gptq", "awq", "compressed-tensors", "fp8")


def quant_method(hf: HfConfig, *, is_native: bool) -> str | None:
    """Return the format of a checkpoint's weights; None if they are plain numbers.

    Args:
        hf: config.json.
        is_native: whether the model has a family of ours.

    Raises:
        ModelLoadError: a format that is not served; names it.
    """
    if CONFIG_KEY not in hf:
        return None
    if not is_native:
        raise hf.error(CONFIG_KEY, "quantized weights are not served for models of transformers")
    method = hf.section(CONFIG_KEY).text("quant_method", "unnamed")
    if method not in METHODS:
        raise hf.error(
            CONFIG_KEY, f"quant_method must be one of {', '.join(METHODS)}, got {method!r}"
        )
    return method


def nothing_stored(path: Path) -> ModelLoadError:
    """Return the error of `--quantization stored` for a checkpoint of plain numbers."""
    return ModelLoadError(
        "quantization: must be another than stored for a checkpoint that holds no integers of "
        f"GPTQ, AWQ or compressed-tensors and no float8, got {path}"
    )
