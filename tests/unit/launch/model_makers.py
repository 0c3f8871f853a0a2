"""Models that tests write, and what becomes of asking a cluster to serve them."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from launch.cluster.config import ClusterConfig, embedded_model
from launch.model_check import check_model
from quire.contract.errors import ConfigError

DEMO = json.loads((embedded_model() / "config.json").read_text())

MakeModel = Callable[..., Path]


def write_model(model: Path, **values: Any) -> Path:
    """Write a copy of the demo model with other values in its config.json; None leaves one out."""
    shutil.copytree(embedded_model(), model, dirs_exist_ok=True)
    config = {key: value for key, value in {**DEMO, **values}.items() if value is not None}
    (model / "config.json").write_text(json.dumps(config))
    return model


def write_tensors(path: Path, num_bytes: int, dtype: str = "F32") -> None:
    """Write the head of a safetensors file of one tensor, and as many bytes as it says, none."""
    head = {"a": {"dtype": dtype, "shape": [num_bytes // 4], "data_offsets": [0, num_bytes]}}
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + num_bytes)


def write_gguf(path: Path, kind: str = "llama", type_name: str = "F32", **values: Any) -> Path:
    """Write the head of a GGUF file of one tensor of 3 tokens, and that tensor's bytes."""
    writer = gguf.GGUFWriter(path, kind)
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 288}
    for key, value in {**sizes, "attention__head_count": 9, **values}.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(f"{kind}.{key.replace('__', '.')}", value)
    form = gguf.GGMLQuantizationType[type_name]
    elements, num_bytes = gguf.GGML_QUANT_SIZES[form]
    rows = np.zeros((3, 288 // elements * num_bytes), np.uint8)
    writer.add_tensor("token_embd.weight", rows, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def check(model: Path | None = None, **options: Any) -> None:
    """Check a model, the demo model if none is given, on a CPU."""
    ports = {"port": None, "grpc_port": 0, "device": "cpu"}
    check_model(ClusterConfig(model=model or embedded_model(), **{**ports, **options}))


def refused(message: str, model: Path | None = None, **options: Any) -> None:
    """Assert that a check fails with a message that begins so."""
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        check(model, **options)
