"""A model directory that cannot be served: one readable line and a non-zero exit.

tests/unit/worker/test_bad_models.py has every kind in the worker's process. Here, one that the
configuration shows and one that the weights show go through a whole `quire serve`.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.cluster.supervisor import embedded_model

QUIRE = str(Path(sys.executable).parent / "quire")


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def no_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def config_not_json(directory: Path) -> None:
    (directory / "config.json").write_text("{")


def unsupported_architecture(directory: Path) -> None:
    edit_config(directory, architectures=["MambaForCausalLM"], model_type="mamba")


def wrong_shape(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    edit_config(directory, intermediate_size=config["intermediate_size"] * 2)


def pickle_only(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def no_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def truncated_weights(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def missing_shard(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"model.embed_tokens.weight": "model-00002-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def quantized(directory: Path) -> None:
    edit_config(
        directory, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}
    )


ALWAYS: list[tuple[Callable[[Path], None], tuple[str, ...]]] = [
    (no_config, ("config.json",)),
    (truncated_weights, ("model.safetensors",)),
]
DEEP: list[tuple[Callable[[Path], None], tuple[str, ...]]] = [
    (config_not_json, ("config.json",)),
    (unsupported_architecture, ("MambaForCausalLM", "attention interface")),
    (wrong_shape, ("shape",)),
    (pickle_only, ("pytorch_model.bin", "safetensors")),
    (no_weights, ("safetensors",)),
    (missing_shard, ("model-00002-of-00002.safetensors",)),
    (quantized, ("bitsandbytes",)),
]


@pytest.mark.parametrize(
    ("damage", "words"),
    [*ALWAYS, *(pytest.param(*case, marks=pytest.mark.deep) for case in DEEP)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_serve_reports_what_is_wrong(
    tmp_path: Path, damage: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    directory = tmp_path / "broken"
    shutil.copytree(embedded_model(), directory)
    damage(directory)
    result = subprocess.run(
        [QUIRE, "serve", str(directory), "--port", "0", "--grpc-port", "0", "--log-level", "error"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    for word in words:
        assert word in errors[0]
