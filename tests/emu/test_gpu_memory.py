"""The cache of a GPU leaves room for all else that a worker ever holds: no step runs out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.errors import ConfigError
from quire.contract.sampling_params import MAX_LOGIT_BIAS_TOKENS, MAX_LOGPROBS, SamplingParams
from quire.contract.workers import CacheSpec, LoadSpec
from tests.emu.conftest import needs_float8_caches
from tests.emu.device_memory import Pool
from tests.emu.emulated_device import EmulatedDevice
from tests.emu.mixed_steps import Mix, graphs_of, load, serve
from tests.factories import CONFIGS, save_model
from tests.models.driver import NO_SLOTS, Driver
from worker_svc.device.base import MemoryProfile
from worker_svc.device.cuda import CudaDevice
from worker_svc.steps.gpu_inputs import GpuInputs
from worker_svc.steps.pending import PendingStep
from worker_svc.steps.runner import ModelRunner
from worker_svc.worker import Worker

TOTAL_BYTES = 1 << 30
NUM_BLOCKS = 60
MAX_MODEL_LEN = 192
OPTIONS = CacheOptions(
    max_num_batched_tokens=48, max_num_seqs=4, gpu_memory_utilization=1.0, swap_space=0.0
)
# So that logits are most of what a step takes.
VOCAB_SIZE = 4096
# The one token that may be sampled is the one that texts consist of: drafts are found.
TOKEN_ID = 5
EVERYTHING = SamplingParams(
    seed=1,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    repetition_penalty=1.1,
    logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS_TOKENS), 0.5),
    allowed_token_ids=(TOKEN_ID,),
    max_tokens=MAX_MODEL_LEN,
    min_tokens=MAX_MODEL_LEN,
    logprobs=MAX_LOGPROBS,
    prompt_logprobs=MAX_LOGPROBS,
    stop_token_ids=(7, 8),
)


@dataclass(frozen=True)
class Kind:
    """A model, how it is loaded, and how it is served."""

    family: str = "llama"
    sizes: dict[str, Any] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)
    serve: dict[str, Any] = field(default_factory=dict)
    has_draft_model: bool = False


KINDS = {
    "dense": Kind(),
    "eager": Kind(serve={"enforce_eager": True}),
    "invariant": Kind(load={"invariant": True}),
    "a draft model": Kind(has_draft_model=True),
    "a draft model, and no row for drafts": Kind(
        serve={"max_num_batched_tokens": 12, "max_num_seqs": 20}, has_draft_model=True
    ),
    "more sequences than a graph has rows": Kind(
        serve={"max_num_batched_tokens": 12, "max_num_seqs": 20}
    ),
    "experts": Kind("mixtral"),
    "latent rows": Kind("deepseek_v3", {"kv_lora_rank": 512, "qk_rope_head_dim": 64}),
    "windows": Kind("gemma2", {"num_hidden_layers": 2}),
    "float8": Kind(load={"kv_cache_dtype": "fp8"}),
    "no plan": Kind(load={"dtype": "float32"}),
    "w8": Kind(sizes={"hidden_size": 128, "intermediate_size": 256}, load={"quantization": "w8"}),
    "w8a8": Kind(load={"quantization": "w8a8"}),
}


@pytest.fixture
def counted(emulated_gpu: EmulatedDevice) -> EmulatedDevice:
    """A GPU of which what others hold is not counted."""
    emulated_gpu.count_memory()
    return emulated_gpu


class Served:
    """A model that a worker on a GPU has loaded.

    Args:
        gpu: the device.
        directory: for the model.
        kind: of the model.

    Attributes:
        options: of its cache.
        worker: the worker.
    """

    def __init__(self, gpu: EmulatedDevice, directory: Path, kind: Kind) -> None:
        if "kv_cache_dtype" in kind.load:
            needs_float8_caches(gpu)
        self._gpu = gpu
        self.options = replace(OPTIONS, **kind.serve)
        for name in ("model", "draft")[: 1 + kind.has_draft_model]:
            sizes = {
                "num_hidden_layers": 1,
                "head_dim": 64,
                "vocab_size": VOCAB_SIZE,
                "max_position_embeddings": MAX_MODEL_LEN,
            }
            save_model(directory / name, CONFIGS[kind.family](**{**sizes, **kind.sizes}))
        draft = str(directory / "draft") if kind.has_draft_model else ""
        options = LoadOptions(**{"dtype": "bfloat16", **kind.load}, draft_model=draft)
        self.worker = Worker(gpu)
        self.worker.start_thread()
        self.worker.load_model(LoadSpec(str(directory / "model"), options), "tiny")

    def needed_bytes(self) -> int:
        """Return the memory for some blocks and what is to be beside them by the profile."""
        found: list[MemoryProfile] = []

        def profile_memory(*args: Any) -> MemoryProfile:
            found.append(CudaDevice.profile_memory(self._gpu, *args))
            return found[0]

        with pytest.MonkeyPatch.context() as patch, self._gpu.limited(TOTAL_BYTES):
            patch.setattr(self._gpu, "profile_memory", profile_memory)
            block_bytes = self.worker.profile_cache(self.options).block_bytes
        assert found[0].default_bytes == found[0].free_bytes
        return TOTAL_BYTES - found[0].free_bytes + NUM_BLOCKS * block_bytes

    def begin(self) -> ModelRunner:
        """Allocate the cache and capture the graphs."""
        self.worker.init_cache(CacheSpec(NUM_BLOCKS, self.options))
        assert self.worker._runner is not None
        return self.worker._runner


def serve_all(runner: ModelRunner, options: CacheOptions) -> None:
    """Compute the largest steps of every kind, each before the one before it is finished."""
    driver, under_way = Driver(runner), list[PendingStep]()

    def step(
        scheduled: Mapping[int, int] | None = None, slots: Mapping[int, int] = NO_SLOTS
    ) -> None:
        under_way.append(driver.start(scheduled, slots))
        if len(under_way) > 1 or slots:
            driver.finish(under_way.pop(0))

    most = options.max_num_batched_tokens
    num_seqs = min(options.max_num_seqs, most, 4)
    length = 2 * most + 20
    for each in range(num_seqs):
        driver.add(each, [TOKEN_ID] * length, EVERYTHING)
        for start in range(0, length, most - each):
            chunk = min(most - each, length - start)
            step({**dict.fromkeys(range(each), 1), each: chunk})
    for _ in range(3):
        step()
    driver.finish(under_way.pop())
    slots = dict.fromkeys(range(num_seqs), most // num_seqs - 1)
    for _ in range(2):
        step(None, slots)
    step()


def pool_of(runner: ModelRunner) -> Pool:
    """The memory of its graphs."""
    assert isinstance(runner.inputs, GpuInputs)
    assert runner.inputs.graphs is not None
    assert isinstance(runner.inputs.graphs.pool, Pool)
    return runner.inputs.graphs.pool


@pytest.mark.parametrize("name", KINDS)
def test_no_step_runs_out(counted: EmulatedDevice, tmp_path: Path, name: str) -> None:
    served = Served(counted, tmp_path, KINDS[name])
    with counted.limited(served.needed_bytes()):
        runner = served.begin()
        serve_all(runner, served.options)
    # Nor was a graph left out for want of memory.
    assert isinstance(runner.inputs, GpuInputs)
    for graphs in (runner.inputs.graphs, runner.inputs.mixed_graphs):
        assert graphs is None or not graphs._late._has_failed


@pytest.mark.parametrize(
    ("name", "part"), [("dense", "logits"), ("dense", "graphs"), ("eager", "logits")]
)
def test_a_step_runs_out_without_a_part(
    counted: EmulatedDevice, tmp_path: Path, name: str, part: str
) -> None:
    """So what is counted is needed: a copy of the logits, for rules, and the pool of graphs."""
    served = Served(counted, tmp_path, KINDS[name])
    num_bytes = OPTIONS.max_num_batched_tokens * VOCAB_SIZE * 4
    if part == "graphs":
        num_bytes = pool_of(served.begin()).bytes
    with (
        counted.limited(served.needed_bytes() - num_bytes),
        pytest.raises(RuntimeError, match="out of memory"),
    ):
        serve_all(served.begin(), served.options)


def test_graphs_captured_late_find_their_memory(counted: EmulatedDevice, tmp_path: Path) -> None:
    """Those of mixed steps, and of decode steps that share, in the pool of the others."""
    for is_mixed in (True, False):
        driver = load(tmp_path, counted, num_layers=1)
        driver.runner.capture_graphs(70)
        pool = pool_of(driver.runner)
        num_bytes = pool.bytes
        if is_mixed:
            serve(driver, [Mix(2, (size,)) for size in (9, 9, 33, 33, 60, 60)])
            assert len(graphs_of(driver.runner).captured) == 2
        else:
            driver.begin(behind=6)
            for _ in range(3):
                driver.step()
            assert any(shares for _, shares in driver.num_replays())
        assert pool.bytes == num_bytes


@pytest.mark.parametrize("num_bytes", [1 << 10, 1 << 20])
def test_a_profile_that_runs_out_names_the_options(
    counted: EmulatedDevice, tmp_path: Path, num_bytes: int
) -> None:
    served = Served(counted, tmp_path, KINDS["eager"])
    with (
        counted.limited(counted.held_bytes + num_bytes),
        pytest.raises(ConfigError, match=r"^max_num_batched_tokens: .* max_num_seqs .*memory"),
    ):
        served.worker.profile_cache(served.options)


def test_what_was_held_is_given_back_before_another_cache(
    counted: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(counted, tmp_path, KINDS["dense"])
    served.worker.profile_cache(served.options)
    # Of weights, and of kernels, which keep for good what they took at their first call.
    held, found = counted.held_bytes, list[int]()
    monkeypatch.setattr(counted, "release_memory", lambda: found.append(counted.held_bytes))
    for _ in range(2):
        served.begin()
        assert found.pop() == held < counted.held_bytes
        assert not found


def test_what_tensors_hold(counted: EmulatedDevice) -> None:
    def empty(num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=counted.torch_device)

    with counted.limited(4096):
        first = empty(1000)
        view = first[100:]
        assert counted.held_bytes == 1024
        del first
        assert counted.held_bytes == 1024
        with pytest.raises(torch.OutOfMemoryError):
            empty(3073)

        def use() -> None:
            both = empty(2000)
            empty(900)
            assert len(both) == 2000

        assert counted.peak_bytes(use) == 3072
        del view
        assert counted.held_bytes == 0


def test_what_pools_hold(counted: EmulatedDevice) -> None:
    """Graphs use the same memory; their pool has it until the last of them is gone."""
    source = torch.zeros(1024, dtype=torch.uint8, device=counted.torch_device)
    kept, pool = [], counted.new_pool()

    def work() -> None:
        (source + 1).sum()  # what is made on the way is free for the next
        kept.append(source + 2)

    graphs = [counted.capture(work, pool) for _ in range(3)]
    assert (pool.in_use, pool.bytes) == (3 * 1024, 2 * 1024 + 1024 + 512)
    assert counted.held_bytes == 1024 + pool.bytes
    graphs.clear()
    assert counted.held_bytes == 4 * 1024
    kept.clear()
    assert counted.held_bytes == 1024
