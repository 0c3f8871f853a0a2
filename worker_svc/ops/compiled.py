"""The compiled kernels, or the build named by QUIRE_KERNELS (a path)."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from quire.contract.errors import ConfigError
from worker_svc.isa import VARIABLE
from worker_svc.ops.current_stream import stream_source

if TYPE_CHECKING:
    from worker_svc import _C as _C
else:

    def _load_kernels() -> ModuleType:
        """Import the compiled kernels, or the build named by QUIRE_KERNELS (a path)."""
        path = os.environ.get("QUIRE_KERNELS")
        if not path:
            return importlib.import_module("worker_svc._C")
        spec = importlib.util.spec_from_file_location("worker_svc._C", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"QUIRE_KERNELS is not an extension module: {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules["worker_svc._C"] = module
        spec.loader.exec_module(module)
        return module

    try:
        _C = _load_kernels()
    except ImportError as error:
        # The kernels name what can be asked for, but not where it was.
        kind, _, what = str(error).partition(": ")
        if kind == "isa":
            raise ConfigError(f"{VARIABLE}: {what}") from None
        raise
    # A torch without CUDA has no streams.
    if hasattr(_C, "follow_streams") and torch.version.cuda is not None:
        _C.follow_streams(stream_source())
