"""What a numerics id depends on, and what it must not."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from launch.cluster.supervisor import embedded_model
from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.workers import CacheSpec, LoadSpec
from tests.factories import FALLBACKS, edit_config, llama_config, rope, save_model
from tests.models.linked_ranks import run_ranks
from worker_svc import ops
from worker_svc.device.cpu import CpuDevice
from worker_svc.loading import numerics_id as module
from worker_svc.loading.checkpoint import open_checkpoint
from worker_svc.loading.loader import LoadedModel, load_model
from worker_svc.loading.numerics_id import ids_of, numerics_id
from worker_svc.parallel.group import ParallelGroup
from worker_svc.worker import Worker

LONGROPE = rope(
    "longrope",
    factor=4.0,
    short_factor=[1.0] * 8,
    long_factor=[2.0] * 8,
    original_max_position_embeddings=64,
)


def load(directory: Path, parallel: ParallelGroup | None = None, **options: Any) -> LoadedModel:
    return load_model(
        LoadSpec(str(directory), LoadOptions(**options)), "m", parallel or ParallelGroup()
    )


def id_of(directory: Path, **options: Any) -> str:
    numerics = load(directory, **options).info.numerics_id
    assert len(bytes.fromhex(numerics)) == 16
    return numerics


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    save_model(tmp_path / "llama", llama_config())
    return tmp_path / "llama"


@pytest.fixture
def isa_comes_back() -> Iterator[None]:
    before = ops.isa()
    yield
    ops.set_isa(before)


# ---------------------------------------------------------------- not in it


def test_ranks_are_not_in_it(llama: Path) -> None:
    alone = load(llama)
    for size in (2, 4):
        for rank in run_ranks(size, lambda parallel: load(llama, parallel)):
            assert rank.info.numerics_id == alone.info.numerics_id
            assert rank.checkpoint_digest == alone.checkpoint_digest


@pytest.mark.usefixtures("isa_comes_back")
def test_the_instruction_set_is_not_in_it(llama: Path) -> None:
    found = set()
    for isa in ops.available_isas():
        ops.set_isa(isa)
        found.add(id_of(llama))
    assert len(found) == 1


@pytest.mark.parametrize(
    "options",
    [
        CacheOptions(block_size=8, swap_space=0.0),
        CacheOptions(block_size=32, max_num_seqs=1, enforce_eager=True, swap_space=0.0),
    ],
)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_blocks_batches_and_threads_are_not_in_it(
    options: CacheOptions, num_threads: int, llama: Path
) -> None:
    worker = Worker(num_threads=num_threads)
    worker.load_model(LoadSpec(str(llama)), "m")
    worker.init_cache(CacheSpec(8, options))
    described = worker.describe().model
    assert described is not None
    assert described.numerics_id == id_of(llama)


def test_names_shards_and_the_length_limit_are_not_in_it(llama: Path, tmp_path: Path) -> None:
    expected = id_of(llama)
    assert id_of(llama, max_model_len=100) == expected
    save_model(tmp_path / "shards", llama_config(), max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert id_of(tmp_path / "shards") == expected
    weights = llama / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt", "made": "elsewhere"})
    edit_config(llama, transformers_version="0", _name_or_path="elsewhere")
    assert id_of(llama) == expected


def test_invariant_is_not_in_it_on_a_cpu(llama: Path) -> None:
    assert id_of(llama, invariant=True) == id_of(llama)


# ---------------------------------------------------------------- in it


def test_every_bit_of_every_tensor_is_in_it(tmp_path: Path) -> None:
    """Also between the places that samples of a few kilobytes would look at."""
    directory = tmp_path / "model"
    shutil.copytree(embedded_model(), directory)
    weights = directory / "model.safetensors"
    content = bytearray(weights.read_bytes())
    header_size = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:header_size])
    tensors = [each for name, each in header.items() if name != "__metadata__"]
    rng = random.Random(0)
    chosen = [rng.choice(tensors) for _ in range(4)]
    places = [header_size + rng.randrange(*tensor["data_offsets"]) for tensor in chosen]
    seen = {id_of(directory)}
    for place in (header_size, len(content) // 2 + 5000, len(content) - 1, *places):
        content[place] ^= 1 << rng.randrange(7)
        weights.write_bytes(content)
        seen.add(id_of(directory))
    assert len(seen) == 8


def swap_two(path: Path) -> None:
    """Give two layers of one shape each other's weights."""
    tensors = load_file(path / "model.safetensors")
    first, second = (f"model.layers.{i}.mlp.up_proj.weight" for i in range(2))
    tensors[first], tensors[second] = tensors[second], tensors[first]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def store_as_bfloat16(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def other_end(path: Path) -> None:
    (path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')


def other_epsilon(path: Path) -> None:
    edit_config(path, rms_norm_eps=1e-5)


def stretched(path: Path) -> None:
    edit_config(path, rope_parameters=rope("linear", factor=2.0))


@pytest.mark.parametrize(
    "change", [swap_two, store_as_bfloat16, other_end, other_epsilon, stretched]
)
def test_the_model_is_in_it(change: Callable[[Path], None], llama: Path) -> None:
    before = id_of(llama)
    change(llama)
    assert id_of(llama) != before


def test_types_are_in_it(llama: Path) -> None:
    options: list[dict[str, str]] = [
        {},
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
        {"kv_cache_dtype": "int8"},
        {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
        {"quantization": "w8a8"},
    ]
    assert len({id_of(llama, **each) for each in options}) == len(options)
    assert id_of(llama, dtype="float32") == id_of(llama)


def test_a_draft_model_is_not_in_it(llama: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "draft", llama_config(num_hidden_layers=1))
    assert id_of(llama, draft_model=str(tmp_path / "draft")) == id_of(llama)


def test_the_choice_of_rotary_frequencies_is_in_it(tmp_path: Path) -> None:
    """A limit counts only where it picks other frequencies."""
    save_model(tmp_path / "long", llama_config(rope_parameters=LONGROPE))
    short = id_of(tmp_path / "long", max_model_len=64)
    assert id_of(tmp_path / "long", max_model_len=40) == short
    assert id_of(tmp_path / "long", max_model_len=65) == id_of(tmp_path / "long") != short
    save_model(tmp_path / "dynamic", llama_config(rope_parameters=rope("dynamic", factor=2.0)))
    usual = id_of(tmp_path / "dynamic")
    assert id_of(tmp_path / "dynamic", max_model_len=100) == usual
    assert id_of(tmp_path / "dynamic", max_model_len=400) != usual


def test_the_version_of_the_arithmetic_is_in_it(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = id_of(llama)
    monkeypatch.setattr(module, "ARITHMETIC_VERSION", module.ARITHMETIC_VERSION + 1)
    assert id_of(llama) != before


def test_what_runs_a_fallback_is_in_its_id_alone(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own version, that of torch, and the code that torch picks for the processor."""
    save_model(tmp_path / "fallback", next(iter(FALLBACKS.values()))())
    native, fallback = id_of(llama), {id_of(tmp_path / "fallback")}
    monkeypatch.setattr(module, "FALLBACK_VERSION", module.FALLBACK_VERSION + 1)
    fallback.add(id_of(tmp_path / "fallback"))
    monkeypatch.setattr(torch, "__version__", "2.0.0")
    fallback.add(id_of(tmp_path / "fallback"))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NONE")
    fallback.add(id_of(tmp_path / "fallback"))
    assert len(fallback) == 4
    assert id_of(llama) == native


def test_dummy_weights_are_those_of_their_configuration(llama: Path) -> None:
    dummy = id_of(llama, load_format="dummy")
    assert dummy != id_of(llama)
    swap_two(llama)
    assert id_of(llama, load_format="dummy") == dummy
    other_epsilon(llama)
    assert id_of(llama, load_format="dummy") != dummy


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bfloat16", "quantization": "w8a8"}, {"load_format": "dummy"}]
)
def test_it_is_known_without_loading_the_model(llama: Path, options: dict[str, Any]) -> None:
    assert ids_of(llama, LoadOptions(**options), CpuDevice()) == load(llama, **options).info.ids


# ---------------------------------------------------------------- on a GPU


def on_gpu(loaded: LoadedModel, isa: str = "sm_90", **changes: Any) -> str:
    """Return the id that a GPU's model would have."""
    given: dict[str, Any] = {"kv_cache_dtype": loaded.kv_cache_dtype, "invariant": True} | changes
    options = replace(loaded.spec.options, invariant=given["invariant"])
    checkpoint = open_checkpoint(Path(loaded.spec.model), options, CpuDevice())
    return numerics_id(
        replace(checkpoint, kv_cache_dtype=given["kv_cache_dtype"]),
        loaded.checkpoint_digest,
        SimpleNamespace(torch_device=torch.device("cuda", 0), isa=isa),  # type: ignore[arg-type]
    )


def test_a_gpu_has_none_without_invariant(llama: Path) -> None:
    loaded = load(llama)
    assert on_gpu(loaded, invariant=False) == ""
    assert on_gpu(loaded) not in ("", loaded.info.numerics_id)


def test_the_capability_of_a_gpu_is_in_it(llama: Path) -> None:
    loaded = load(llama)
    assert on_gpu(loaded, "sm_90") == on_gpu(loaded, "sm_90") != on_gpu(loaded, "sm_80")


def test_the_length_that_a_float8_cache_is_calibrated_on_is_in_it(llama: Path) -> None:
    fp8 = {"kv_cache_dtype": torch.float8_e4m3fn}
    full, shorter = load(llama), load(llama, max_model_len=100)
    assert on_gpu(full) == on_gpu(shorter) != on_gpu(full, **fp8)
    assert on_gpu(full, **fp8) != on_gpu(shorter, **fp8)
