"""How much cache fits: the memory that the largest step leaves."""

import gc
import time
from collections import deque
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from quire.contract.engine_options import GIB, CacheOptions
from quire.contract.errors import ConfigError
from quire.contract.steps import max_sampled_rows
from quire.contract.workers import CacheProfile
from worker_svc.cache.block_size import check_block_size
from worker_svc.cache.engine import allocate_tensors, device_block_bytes
from worker_svc.device.base import MemoryProfile
from worker_svc.device.host_memory import available_memory_bytes
from worker_svc.layers.attention import KVCaches
from worker_svc.loading.loader import LoadedModel
from worker_svc.sampling.largest import largest_batch
from worker_svc.steps.mixed_graphs import most_rows
from worker_svc.steps.pending import PendingStep
from worker_svc.steps.prompt_step import run_prompts
from worker_svc.steps.runner import ModelRunner

SWAP_SHARE_OF_FREE_MEMORY = 0.125
MAX_DEFAULT_SWAP_BYTES = 2 * 2**30
MAX_PROFILE_CACHE_BYTES = 2**28
# For each element of a row: four of an MLP, thrice, and attention, in float32 at most.
_LAYER_BYTES = 24 * 4
# With a copy that is sorted.
_LOGIT_BYTES = 2 * 4
WARM_UP_TOKENS = (1, 2, 4, 8, 16, 32, 64)
WARM_UP_MAX_S = 1.0


def profile_cache(loaded: LoadedModel, options: CacheOptions, num_at_host: int = 1) -> CacheProfile:
    """Return the number of blocks that fit beside all else that is held, and the largest step.

    A GPU makes all that and runs the step. Never more than the sequences of a step fill at the
    model's full length.

    Args:
        loaded: the model.
        options: of the cache.
        num_at_host: workers that share this machine's memory: on CPUs each has its part.

    Raises:
        ConfigError: the kernels do not serve the block size, not one block fits, or the size asked
            for is not free.
    """
    check_block_size(options.block_size)
    bytes_per_block = device_block_bytes(loaded, options.block_size)
    shared = options
    if options.gpu_memory_utilization is not None and loaded.device.is_immediate:
        shared = replace(
            options, gpu_memory_utilization=options.gpu_memory_utilization / num_at_host
        )
    memory = _profile_memory(loaded, shared)
    if options.kv_cache_memory_bytes is None:
        budget = memory.default_bytes
    else:
        budget = options.kv_cache_memory_bytes
        if budget > memory.free_bytes:
            raise ConfigError(
                "kv_cache_gib: must be at most the free memory, "
                f"{memory.free_bytes / GIB:.1f} GiB, got {options.kv_cache_gib:g} GiB"
            )
    if budget < bytes_per_block:
        if options.kv_cache_gib is None and options.gpu_memory_utilization is not None:
            raise ConfigError(
                "gpu_memory_utilization: must leave memory for a block of the cache beside "
                f"{loaded.weight_bytes / GIB:.1f} GiB of weights, got "
                f"{options.gpu_memory_utilization:g}"
            )
        raise ConfigError(
            f"kv_cache_gib: must hold a block, {bytes_per_block} bytes, got {budget} bytes"
        )
    blocks_per_sequence = -(-loaded.info.max_model_len // options.block_size)
    most_useful = options.max_num_seqs * blocks_per_sequence
    return CacheProfile(min(budget // bytes_per_block, most_useful), bytes_per_block)


class LargestStep:
    """All that a worker on a GPU holds beside its cache, and the step that takes most beyond that.

    Args:
        loaded: the model.
        options: of the cache.
        num_blocks: of the cache that the step has, which it does not write.

    Raises:
        ConfigError: there is not enough memory for the cache.
    """

    def __init__(self, loaded: LoadedModel, options: CacheOptions, num_blocks: int) -> None:
        self._runner = runner = ModelRunner(
            loaded,
            options.block_size,
            num_blocks,
            max_num_seqs=options.max_num_seqs,
            enforce_eager=options.enforce_eager,
            takes_grammars=False,  # masks of allowed tokens are as large as a grammar's
        )
        runner.capture_graphs(options.max_num_batched_tokens)
        self._has_draft_model = bool(loaded.spec.options.draft_model)
        self._batch = largest_batch(
            runner.mirror.held,
            _most_rows(loaded, options),
            options.max_num_seqs,
            min(max_sampled_rows(options.max_num_seqs), options.max_num_batched_tokens),
            loaded.info.max_model_len,
            loaded.info.vocab_size,
        )
        # The next step starts before the results of the one before are taken.
        self._results: deque[PendingStep] = deque(maxlen=2)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Run the step, and what drafts for it."""
        if self._has_draft_model:
            held, rows = self._runner.mirror.held, self._batch.rows
            for num_missing in (held.num_tokens[rows], 1):  # reads texts, then drafts
                held.num_draft_computed[rows] = held.num_tokens[rows] - num_missing
                self._runner.mirror.drafter(held, rows, np.ones_like(rows))
        # Not as a graph, which a step is not where blocks move.
        self._results.append(self._runner.compute(self._batch, layer_by_layer=True))


def _most_rows(loaded: LoadedModel, options: CacheOptions) -> int:
    """Return the rows of the largest step, or of the largest graph if that has more."""
    rows = options.max_num_batched_tokens
    if options.enforce_eager or not loaded.model.is_capturable:
        return rows
    return max(rows, most_rows(rows), options.max_num_seqs)


def _blocks_of_profile(loaded: LoadedModel, options: CacheOptions) -> int:
    """Return of how many blocks a cache is to be for the profile, within what is asked for.

    Plans keep the queries of a step where the memory of a layer's keys is smaller, as it is not
    with most caches: with enough blocks they do not. Where the limit leaves fewer, the queries
    count as held, which is too much.
    """
    heads = loaded.model.heads
    num_heads = len(heads.heads) + 2 * heads.num_kv_heads
    row_bytes = num_heads * heads.head_dim * loaded.dtype.itemsize
    key_bytes = heads.num_kv_heads * heads.head_dim * loaded.kv_cache_dtype.itemsize
    enough = -(-_most_rows(loaded, options) * row_bytes // (options.block_size * key_bytes)) + 1
    limit = MAX_PROFILE_CACHE_BYTES
    if options.kv_cache_memory_bytes is not None:
        limit = min(limit, options.kv_cache_memory_bytes)
    return max(1, min(enough, limit // device_block_bytes(loaded, options.block_size)))


def _profile_memory(loaded: LoadedModel, options: CacheOptions) -> MemoryProfile:
    """Return the memory that is left for the cache.

    Raises:
        ConfigError: a GPU has none left.
    """
    num_blocks = _blocks_of_profile(loaded, options)
    try:
        return loaded.device.profile_memory(
            partial(LargestStep, loaded, options, num_blocks),
            options.gpu_memory_utilization,
            partial(allocate_tensors, loaded, options.block_size, num_blocks),
            loaded.weight_bytes + _guess_step_bytes(loaded, options),
        )
    except (RuntimeError, ConfigError) as error:
        # The profile's own cache may be what there is no memory for.
        if not _is_out_of_memory(error):
            raise
        raise ConfigError(
            "max_num_batched_tokens: must leave memory for a cache, got "
            f"{options.max_num_batched_tokens} with max_num_seqs {options.max_num_seqs} and "
            f"gpu_memory_utilization {options.gpu_memory_utilization}: out of memory"
        ) from error
    finally:
        gc.collect()


def _guess_step_bytes(loaded: LoadedModel, options: CacheOptions) -> int:
    """Return about what activations of the largest step take: of one layer, and the logits."""
    layer = options.max_num_batched_tokens * loaded.info.embedding_size * _LAYER_BYTES
    logits = max_sampled_rows(options.max_num_seqs) * loaded.info.vocab_size * _LOGIT_BYTES
    return layer + logits


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is for want of a device's memory: torch's, cuBLAS's or a kernel's."""
    text = f"{error} {error.__cause__}"
    return "out of memory" in text or "ALLOC_FAILED" in text


def choose_swap_space_bytes(asked: int | None) -> int:
    """Return how much host memory swapped blocks may take.

    Args:
        asked: bytes that the operator wants; None takes a share of the free memory.

    Raises:
        ConfigError: so much is not free.
    """
    if asked == 0:
        return 0
    free = available_memory_bytes()
    if asked is None:
        return min(int(free * SWAP_SHARE_OF_FREE_MEMORY), MAX_DEFAULT_SWAP_BYTES)
    if asked > free:
        raise ConfigError(
            f"swap_space: must be at most the free memory, {free / GIB:.1f} GiB, "
            f"got {asked / GIB:g} GiB"
        )
    return asked


def warm_up(
    loaded: LoadedModel, caches: KVCaches, block_size: int, most_decoding: int = WARM_UP_TOKENS[-1]
) -> None:
    """Run decode steps of the usual sizes, so that libraries prepare every code path.

    They read block 0 for every context, and write to no block.

    Args:
        loaded: the model.
        caches: caches of at least one block.
        block_size: tokens of a block.
        most_decoding: the most sequences that a step decodes.
    """
    deadline = time.monotonic() + WARM_UP_MAX_S
    device = loaded.device.torch_device
    for num_tokens in [each for each in WARM_UP_TOKENS if each <= most_decoding]:
        run_prompts(
            loaded,
            caches,
            np.ones(num_tokens, np.int32),
            np.zeros(num_tokens, np.int64),
            np.full(num_tokens, -1, np.int64),
            np.zeros((num_tokens, 1), np.int32),
        )
        is_late = torch.tensor([time.monotonic() > deadline], dtype=torch.int32).to(device)
        # By rank 0's clock: a rank that went on alone would wait for the others for ever.
        if loaded.parallel.broadcast(is_late).item():
            break
