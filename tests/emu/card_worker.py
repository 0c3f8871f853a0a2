"""What a worker does on the card that QUIRE_EMULATED_DEVICE names; a process plays one alone."""

from dataclasses import dataclass
from pathlib import Path

from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.workers import CacheSpec, LoadSpec
from tests.emu.emulated_device import emulated_gpu
from tests.models.driver import Driver
from worker_svc.worker import Worker

PROMPT = [5, 17, 3, 99, 42]
NUM_TOKENS = 3
CACHE = CacheSpec(8, CacheOptions(max_num_batched_tokens=16, max_num_seqs=1, swap_space=0))


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it.

    Attributes:
        isa: as the worker describes itself.
        gpu: the same.
        kv_cache_dtypes: that the device offers beside the model's own.
        numerics_ids: of the model, by `kv_cache_dtype`.
        tokens: the greedy continuation, by `kv_cache_dtype`, of those that are served.
        refusals: the error of a cache that is not served, by `kv_cache_dtype`.
    """

    isa: str
    gpu: str
    kv_cache_dtypes: tuple[str, ...]
    numerics_ids: dict[str, str]
    tokens: dict[str, list[int]]
    refusals: dict[str, str]


def serve(model: Path) -> Found:
    """Serve a model with each kind of cache on the card of this process."""
    numerics_ids, tokens, refusals = {}, {}, {}
    with emulated_gpu() as device:
        for kv_cache_dtype in ("auto", "fp8"):
            worker = Worker(device)
            worker.start_thread()
            try:
                loaded = worker.load_model(_spec(model, kv_cache_dtype), "tiny")
            except ModelLoadError as error:
                refusals[kv_cache_dtype] = str(error)
                continue
            numerics_ids[kv_cache_dtype] = loaded.info.numerics_id
            tokens[kv_cache_dtype] = _continue_prompt(worker)
        description = worker.describe()
        offered = tuple(map(str, device.kv_cache_dtypes))
    return Found(description.isa, description.gpu, offered, numerics_ids, tokens, refusals)


def _continue_prompt(worker: Worker) -> list[int]:
    worker.init_cache(CACHE)
    runner = worker._runner
    assert runner is not None
    (tokens,) = Driver(runner).generate([PROMPT], NUM_TOKENS)
    return tokens


def _spec(model: Path, kv_cache_dtype: str) -> LoadSpec:
    options = LoadOptions(
        dtype="bfloat16", max_model_len=64, invariant=True, kv_cache_dtype=kv_cache_dtype
    )
    return LoadSpec(str(model), options)
