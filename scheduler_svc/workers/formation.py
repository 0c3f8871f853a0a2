"""How workers are formed: found, claimed, given the model and a cache, all under one epoch."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from quire.contract.errors import ConfigError, ModelLoadError, UnavailableError
from quire.contract.outputs import ModelInfo
from quire.contract.workers import (
    CacheSpec,
    LoadRequest,
    LoadResponse,
    LoadSpec,
    Meeting,
    WorkerDescription,
)
from quire.observe.log import get_logger
from quire.version import __version__
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.workers.client import WorkerClient, on_all
from scheduler_svc.workers.roster import Roster

# 2020-01-01, so that epochs are short on the wire.
EPOCH_ORIGIN_S = 1_577_836_800
# Longer than workers take to notice that a scheduler hangs (the pings of quire.rpc).
CLAIM_PATIENCE_S = 20.0
CLAIM_POLL_S = 0.1

log = get_logger()


@dataclass(frozen=True, slots=True)
class FormedWorkers:
    """What a cell knows of its workers. Model and blocks stay when they are formed again.

    Attributes:
        epoch: larger than any that these workers have seen.
        model: as loaded, with the max_model_len that its cache can hold.
        num_blocks: blocks of the cache, the same on every rank.
        num_host_blocks: blocks in the host's memory, the same on every rank.
        swap_block_us: measured time to move one block one way, on the slowest rank.
        checkpoint_digest: of configuration and tensors, the same on every rank.
        is_invariant: whether a token's bits depend on its context alone, not on its company.
    """

    epoch: int
    model: ModelInfo
    num_blocks: int
    num_host_blocks: int = 0
    swap_block_us: float = 0.0
    checkpoint_digest: bytes = b""
    is_invariant: bool = True


class Formation:
    """Forms the workers of a cell, again whenever one is lost.

    Args:
        config: which workers, and what to load into them.
        roster: where they are.

    Attributes:
        workers: in order of rank.
    """

    def __init__(self, config: SchedulerConfig, roster: Roster) -> None:
        self.workers = [
            WorkerClient(rank, address, tls=config.tls)
            for rank, address in enumerate(config.worker_addresses)
        ]
        self._config = config
        self._roster = roster
        self._formed: FormedWorkers | None = None
        self._loaded_model: ModelInfo | None = None
        self._is_invariant = config.invariant

    async def form(self, scheduler_name: str) -> FormedWorkers:
        """Describe, load, profile (the first time) and allocate, under a new epoch.

        Waits for workers that have yet to announce themselves. Every sequence is unknown to the
        workers afterwards. Weights that they hold are kept.

        Args:
            scheduler_name: by which workers know who drives them, the same at every call.

        Raises:
            ConfigError: a worker is of another version or driven by another scheduler, or the
                settings do not fit the cache.
            ModelLoadError: the model cannot be served, or differs between the ranks.
            StaleEpochError: another scheduler took the workers over.
            WorkerFailedError: a worker failed in a way it did not foresee.
            UnavailableError: a worker cannot be reached; worth another attempt.
        """
        if self._config.waits_for_announcements:
            await self._find_workers()
        epoch = await self._next_epoch(scheduler_name)
        loaded, digest = await self._load_model(epoch, scheduler_name)
        if self._formed is None:
            num_blocks = await self._choose_num_blocks(epoch)
            model = self._fit_model_len(loaded, num_blocks)
            formed = FormedWorkers(
                epoch,
                model,
                num_blocks,
                checkpoint_digest=digest,
                is_invariant=self._is_invariant,
            )
        elif (
            _without_text(loaded) != _without_text(self._loaded_model)
            or digest != self._formed.checkpoint_digest
        ):
            raise ModelLoadError(f"model {self._config.model} changed while it was served")
        else:
            # Not profiled again: a survivor's cache would count as used memory, and routers
            # already have the limits.
            formed = replace(self._formed, epoch=epoch)
        spec = CacheSpec(formed.num_blocks, self._config)
        caches = await on_all(self.workers, lambda worker: worker.init_cache(epoch, spec))
        # Without a configured size, a worker takes a share of what is free now.
        formed = replace(
            formed,
            num_host_blocks=min(cache.num_blocks for cache in caches),
            swap_block_us=max(cache.block_us for cache in caches),
        )
        self._formed, self._loaded_model = formed, loaded
        return formed

    async def _find_workers(self) -> None:
        """Connect to the addresses that the workers have announced."""
        addresses = await self._roster.complete()
        for worker in self.workers:
            await worker.close()
        # New channels: an old one may still be in backoff from when the worker was not there.
        self.workers = [
            WorkerClient(rank, address, may_be_late=False, tls=self._config.tls)
            for rank, address in enumerate(addresses)
        ]

    async def _describe(self, worker: WorkerClient) -> WorkerDescription:
        try:
            return await worker.describe()
        except UnavailableError:
            self._roster.forget(worker.rank, worker.address)
            raise

    async def _next_epoch(self, scheduler_name: str) -> int:
        """Return an epoch above the clock's and above any that was used before."""
        descriptions = await on_all(
            self.workers, lambda worker: self._describe_unclaimed(worker, scheduler_name)
        )
        for worker, description in zip(self.workers, descriptions, strict=True):
            if description.version != __version__:
                raise ConfigError(
                    f"worker {worker.address} runs Quire {description.version}, this scheduler "
                    f"{__version__}: both must run the same version"
                )
            log.info(
                "worker_found",
                rank=worker.rank,
                address=worker.address,
                device=description.device,
                isa=description.isa,
            )
        are_cpus = all(description.device == "cpu" for description in descriptions)
        self._is_invariant = self._config.invariant or are_cpus
        if self._config.draft_model and not self._is_invariant:
            raise ConfigError("invariant: must be true for a draft model on GPUs, got false")
        seen = [description.epoch for description in descriptions]
        if self._formed is not None:
            seen.append(self._formed.epoch)
        milliseconds = int(1000 * (time.time() - EPOCH_ORIGIN_S))
        return max(milliseconds, max(seen) + 1)

    async def _describe_unclaimed(
        self, worker: WorkerClient, scheduler_name: str
    ) -> WorkerDescription:
        """Describe a worker that no other scheduler drives.

        A dead scheduler releases its workers at once, a hung one after the keepalive timeout. One
        that is alive keeps them: a newcomer has the larger epoch, and would take them by mistake.
        """
        deadline = time.monotonic() + CLAIM_PATIENCE_S
        while True:
            description = await self._describe(worker)
            driver = description.scheduler_name
            if driver in ("", scheduler_name):
                return description
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"worker {worker.address} is driven by the scheduler {driver}; stop that one "
                    "first, or give this one other workers"
                )
            await asyncio.sleep(CLAIM_POLL_S)

    async def _load_model(self, epoch: int, scheduler_name: str) -> tuple[ModelInfo, bytes]:
        """Load the model on every rank; return its description and the checkpoint's digest."""
        config = self._config
        meeting_address = ""
        if len(self.workers) > 1:
            meeting_address = await self.workers[0].open_rendezvous(epoch)

        def load(worker: WorkerClient) -> Coroutine[Any, Any, LoadResponse]:
            spec = LoadSpec(config.model, config, worker.rank, config.num_ranks)
            meeting = Meeting(meeting_address, worker.host, epoch, config.distributed_timeout_s)
            return worker.load_model(LoadRequest(spec, config.model_name, meeting, scheduler_name))

        first, *others = await on_all(self.workers, load)
        for worker, response in zip(self.workers[1:], others, strict=True):
            is_same = _without_text(response.model) == _without_text(first.model)
            if not is_same or response.checkpoint_digest != first.checkpoint_digest:
                raise ModelLoadError(
                    f"workers {self.workers[0].address} and {worker.address} have different models "
                    f"at {config.model}: all ranks must be given the same directory"
                )
        return first.model, first.checkpoint_digest

    async def _choose_num_blocks(self, epoch: int) -> int:
        config = self._config
        if config.num_gpu_blocks_override is not None:
            return config.num_gpu_blocks_override
        profiles = await on_all(self.workers, lambda worker: worker.profile_cache(epoch, config))
        num_blocks = min(profile.num_blocks for profile in profiles)
        if num_blocks == 0:
            raise ConfigError(
                "kv_cache_gib: must hold at least one block of "
                f"{max(profile.block_bytes for profile in profiles)} bytes, "
                f"got {config.kv_cache_memory_bytes or 'too little free memory'}"
            )
        return num_blocks

    def _fit_model_len(self, model: ModelInfo, num_blocks: int) -> ModelInfo:
        """Return the model, its max_model_len limited to what the cache can hold."""
        num_slots = num_blocks * self._config.block_size
        if model.max_model_len <= num_slots:
            return model
        if self._config.max_model_len is not None:
            raise ConfigError(
                f"max_model_len: must be at most {num_slots}, the tokens that the cache holds, "
                f"got {self._config.max_model_len}"
            )
        log.warning("max_model_len_clamped", model=model.max_model_len, cache=num_slots)
        return replace(model, max_model_len=num_slots)


def _without_text(model: ModelInfo | None) -> ModelInfo | None:
    """Return what ranks must agree on: files of the tokenizer are the routers' affair."""
    return None if model is None else replace(model, text_id="")
