"""Whether the bits of a model that `transformers` runs were proved, as its numerics id needs.

Two proofs: of its kinds of layers, on a small model with random weights (models/small_proof.py),
whose result is kept, and of the weights that were loaded (models/bits_proof.py), which is not: it
hangs on every byte of them.
"""

import json
import tempfile
import time
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
import transformers

from quire.cache_dir import cache_dir
from quire.contract.errors import ConfigError
from quire.observe.log import get_logger
from worker_svc.device.base import Device
from worker_svc.layers.device_linear import are_rows_independent
from worker_svc.models.bits_proof import ON_LOADED_WEIGHTS, find_dependence
from worker_svc.models.fallback import FallbackForCausalLM
from worker_svc.models.small_proof import find_fault

# Of a configuration: where it came from, and the type, which counts as it is chosen.
_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")

log = get_logger()


def keeps_bits(
    model: FallbackForCausalLM, dtype: torch.dtype, device: Device, max_model_len: int
) -> bool:
    """Return whether a token's bits depend on no other row, cut or step; report it if they do.

    Args:
        model: as it will be served.
        dtype: of the model.
        device: of the model.
        max_model_len: limit of a sequence's length, in tokens.
    """
    if not are_rows_independent(device.torch_device):
        return False
    begin = time.monotonic()
    is_kept, fault = _of_its_kinds(model, dtype, device)
    if fault is None:
        place = device.torch_device
        found = find_dependence(model, dtype, place, max_model_len, ON_LOADED_WEIGHTS)
        fault = None if found is None else f"bits depend on {found}"
    took = {
        "architecture": model.architecture,
        "seconds": round(time.monotonic() - begin, 1),
        "small_model": "kept" if is_kept else "run",
    }
    if fault is None:
        log.info("bits_proved", **took)
    else:
        lost = "its streams are not moved or resumed as equal"
        log.warning("no_numerics_id", reason=fault, lost=lost, **took)
    return fault is None


def _of_its_kinds(
    model: FallbackForCausalLM, dtype: torch.dtype, device: Device
) -> tuple[bool, str | None]:
    """Return whether the result of an earlier load was found, and what is wrong, None if nothing.

    Mutates: the kept results, where there is room for them.
    """
    name = f"{_digest(model, dtype, device)}.json"
    with suppress(ConfigError, OSError, ValueError, KeyError, TypeError):
        kept = json.loads((cache_dir("proofs") / name).read_text("utf-8"))["fault"]
        if kept is None or isinstance(kept, str):
            return True, kept
    fault = find_fault(model.config, dtype, device.torch_device)
    with suppress(ConfigError, OSError):
        path = cache_dir("proofs") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside it, so that it gets its name at once, however many workers load the model.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as part:
            json.dump({"architecture": model.architecture, "fault": fault}, part)
        Path(part.name).replace(path)
    return False, fault


def _digest(model: FallbackForCausalLM, dtype: torch.dtype, device: Device) -> str:
    """Return what names a result: all that computes it, and the configuration."""
    config = {
        key: value for key, value in model.config.to_dict().items() if key not in _NOT_OF_THE_MODEL
    }
    parts = {
        "quire": _code(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": [device.torch_device.type, device.isa],
        "dtype": str(dtype),
        "class": type(model.config).__name__,
        "config": config,
    }
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


@cache
def _code() -> str:
    """Return a digest of the workers' code and kernels: it says more than any version."""
    import worker_svc
    from worker_svc import _C

    digest = sha256()
    root = Path(next(iter(worker_svc.__path__)))
    for path in (*sorted(root.rglob("*.py")), Path(_C.__file__)):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()
