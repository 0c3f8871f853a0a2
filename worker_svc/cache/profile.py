"""How much cache fits: the memory that the largest step leaves."""

import time

import numpy as np
import torch

from quire.contract.engine_options import CacheOptions
from quire.contract.errors import ConfigError
from quire.contract.workers import CacheProfile
from worker_svc.cache.engine import allocate_caches, check_block_size, device_block_bytes
from worker_svc.device.host_memory import available_memory_bytes
from worker_svc.layers.attention import KVCaches
from worker_svc.loading.loader import LoadedModel
from worker_svc.steps.mixed_graphs import most_rows
from worker_svc.steps.prompt_step import run_prompts

SWAP_SHARE_OF_FREE_MEMORY = 0.125
MAX_DEFAULT_SWAP_BYTES = 2 * 2**30
WARM_UP_TOKENS = (1, 2, 4, 8, 16, 32, 64)
WARM_UP_MAX_S = 1.0


def profile_cache(loaded: LoadedModel, options: CacheOptions) -> CacheProfile:
    """Return the number of blocks that fit beside the largest step, which a GPU runs for it.

    Never more than the sequences of a step fill at the model's full length.

    Raises:
        ConfigError: the kernels do not serve the block size, not one block fits, or the size asked
            for is not free.
    """
    check_block_size(options.block_size)

    def largest_step() -> None:
        for each in (loaded, loaded.draft):
            if each is not None:
                _run_dummy_step(
                    each,
                    allocate_caches(each, options.block_size, 1),
                    options.block_size,
                    options.max_num_batched_tokens,
                    options.max_num_seqs,
                )

    def largest_graph() -> None:
        rows = max(most_rows(options.max_num_batched_tokens), options.max_num_seqs)
        # Of few sequences: logits are in no graph.
        num_seqs = -(-rows // loaded.info.max_model_len)
        caches = allocate_caches(loaded, options.block_size, 1)
        _run_dummy_step(loaded, caches, options.block_size, rows, num_seqs)

    has_graphs = not options.enforce_eager and loaded.model.is_capturable
    bytes_per_block = device_block_bytes(loaded, options.block_size)
    memory = loaded.device.profile_memory(
        largest_step, options.gpu_memory_utilization, largest_graph if has_graphs else None
    )
    if options.kv_cache_memory_bytes is None:
        budget = memory.default_bytes
    else:
        budget = options.kv_cache_memory_bytes
        if budget > memory.free_bytes:
            raise ConfigError(
                "kv_cache_gib: must be at most the free memory, "
                f"{memory.free_bytes} bytes, got {budget} bytes"
            )
    if budget < bytes_per_block:
        raise ConfigError(
            f"kv_cache_gib: must hold a block, {bytes_per_block} bytes, got {budget} bytes"
        )
    blocks_per_sequence = -(-loaded.info.max_model_len // options.block_size)
    most_useful = options.max_num_seqs * blocks_per_sequence
    return CacheProfile(min(budget // bytes_per_block, most_useful), bytes_per_block)


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
            f"swap_space: must be at most the free memory, {free} bytes, got {asked} bytes"
        )
    return asked


def warm_up(loaded: LoadedModel, caches: KVCaches, block_size: int) -> None:
    """Run decode steps of the usual sizes, so that libraries prepare every code path.

    Writes nothing to the caches.
    """
    deadline = time.monotonic() + WARM_UP_MAX_S
    device = loaded.device.torch_device
    for num_tokens in WARM_UP_TOKENS:
        _run_dummy_step(loaded, caches, block_size, num_tokens, num_tokens)
        is_late = torch.tensor([time.monotonic() > deadline], dtype=torch.int32).to(device)
        # By rank 0's clock: a rank that went on alone would wait for the others for ever.
        if loaded.parallel.broadcast(is_late).item():
            break


def _run_dummy_step(
    loaded: LoadedModel, caches: KVCaches, block_size: int, num_tokens: int, num_seqs: int
) -> None:
    """Run a step that reads block 0 for every context and writes to no block.

    Args:
        loaded: the model.
        caches: caches of at least one block.
        block_size: tokens of a block.
        num_tokens: tokens, shared evenly by the sequences; each is cut at the model's length.
        num_seqs: limit on the sequences.
    """
    num_seqs = min(num_seqs, num_tokens)
    share, rest = divmod(num_tokens, num_seqs)
    lengths = np.full(num_seqs, share, np.int32)
    lengths[:rest] += 1
    lengths = lengths.clip(max=loaded.info.max_model_len)
    num_tokens = int(lengths.sum())
    longest = -(-int(lengths.max()) // block_size)
    run_prompts(
        loaded,
        caches,
        lengths,
        np.zeros(num_tokens, np.int64),
        np.full(num_tokens, -1, np.int64),
        np.zeros((num_seqs, longest), np.int32),
    )
