"""A model's files before anything starts: what they say of it, and what its weights take.

Read in milliseconds and without torch, with the words of the worker that would refuse them.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launch.weight_files import stored_tensors
from quire.contract.errors import ConfigError, ModelLoadError
from quire.gguf_file import GgufFile, find_gguf
from worker_svc.loading.gguf_config import read_gguf_config
from worker_svc.loading.gguf_types import check_tensors
from worker_svc.loading.hf_config import HfConfig

# Of an element, by the names of safetensors.
_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}
_FLOATS = ("F64", "F32", "F16", "BF16")
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
# What a weight takes; layers that stay as they are make it a little more.
_QUANTIZED_BYTES = {"w8a8": 1.0, "w8": 1.0, "w4": 0.5}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model directory, or a GGUF file.

    Attributes:
        path: of it.
        hf: config.json, or what stands for it in a GGUF file.
        gguf: its head; None for a directory.
    """

    path: Path
    hf: HfConfig
    gguf: GgufFile | None

    @property
    def dtype(self) -> str:
        """Type of activations, as torch names it."""
        key = "dtype" if "dtype" in self.hf else "torch_dtype"
        return self.hf.text(key, "float32").removeprefix("torch.")

    def weight_bytes(self, name: str, dtype: str, quantization: str) -> float:
        """Return the bytes that all weights take in memory.

        Args:
            name: the option that names this model, for errors.
            dtype: that weights are loaded in; "auto" for that of the model.
            quantization: of `LoadOptions`.

        Raises:
            ConfigError: a file is broken, or has a tensor of an unknown type; names it.
            ModelLoadError: config.json has no text as type of activations, which is asked for.
        """
        held = _DTYPES.get(self.dtype if dtype == "auto" else dtype, "")
        if self.gguf is not None:
            each = _QUANTIZED_BYTES.get(quantization, _BYTES.get(held, 2))
            return each * sum(math.prod(tensor.shape) for tensor in self.gguf.tensors.values())
        num_bytes = 0.0
        for tensor in stored_tensors(self.path, name):
            if tensor.dtype not in _BYTES:
                raise ConfigError(
                    f"{name}: tensor {tensor.name} must be of one of {', '.join(_BYTES)}, "
                    f"got {tensor.dtype}"
                )
            stored = _BYTES[tensor.dtype]
            each = stored
            if tensor.dtype in _FLOATS:
                each = _QUANTIZED_BYTES.get(quantization, _BYTES.get(held, stored))
            num_bytes += tensor.num_bytes * each / stored
        return num_bytes


def read_model(path: Path, name: str) -> ModelFiles:
    """Read what a model directory or GGUF file says of itself.

    Args:
        path: of it.
        name: the option that names it, for errors.

    Raises:
        ConfigError: it holds no model.
        ModelLoadError: a file is broken, or a GGUF file is not served; names it.
    """
    found = find_gguf(path)
    if found is not None:
        gguf = GgufFile(found)
        check_tensors(gguf)
        # The factors of a rope change neither sizes nor what is served.
        return ModelFiles(path, read_gguf_config(gguf, lambda _: []), gguf)
    if (path / "config.json").is_file():
        return ModelFiles(path, HfConfig.read(path / "config.json"), None)
    if (path / "adapter_config.json").is_file():
        base = ""
        with suppress(ModelLoadError):
            base = HfConfig.read(path / "adapter_config.json").text("base_model_name_or_path", "")
        raise ConfigError(
            f"{name}: must be a whole model, got an adapter{f' of {base}' if base else ''} in "
            f"{path}; merge it into the model's weights"
        )
    raise ConfigError(f"{name}: must have a config.json or be a .gguf file, got {path}")
