"""How workers are formed: found, claimed, given the model and a cache, all under one epoch."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quire.contract.epochs import clock_epoch, max_epoch
from quire.contract.errors import ConfigError, ModelLoadError, StaleEpochError, UnavailableError
from quire.contract.outputs import ModelInfo
from quire.contract.workers import (
    MEETING_SECRET_BYTES,
    CacheSpec,
    LoadRequest,
    LoadResponse,
    LoadSpec,
    Meeting,
    WorkerDescription,
    WorkerMirror,
)
from quire.observe.log import get_logger
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.workers.adoption import CacheContents, common_cache, common_contents
from scheduler_svc.workers.alike import check_gpus, described_as, is_same
from scheduler_svc.workers.client import WorkerClient, on_all
from scheduler_svc.workers.patience import Patience
from scheduler_svc.workers.roster import Roster

# Longer than workers take to notice that a scheduler hangs (--peer-timeout-s).
CLAIM_PATIENCE_S = 20.0
CLAIM_POLL_S = 0.1

log = get_logger()


@dataclass(frozen=True, slots=True)
class FormedWorkers:
    """What a cell knows of its workers.

    Model and blocks stay when they are formed again, but for its text id and what it reports of
    vectors.

    Attributes:
        epoch: larger than any that these workers have seen.
        model: as loaded, with the max_model_len that its cache can hold.
        num_blocks: blocks of the cache, the same on every rank.
        num_host_blocks: blocks in the host's memory, the same on every rank.
        swap_block_us: measured time to move one block one way, on the slowest rank.
        cache_bytes: memory of the cache, on the rank that has most.
        checkpoint_digest: of configuration and tensors, the same on every rank.
        is_invariant: whether a token's bits depend on its context alone, not on its company.
        contents: what the workers' caches hold from before.
        previous_epoch: the largest that they had seen before.
    """

    epoch: int
    model: ModelInfo
    num_blocks: int
    num_host_blocks: int = 0
    swap_block_us: float = 0.0
    cache_bytes: int = 0
    checkpoint_digest: bytes = b""
    is_invariant: bool = True
    contents: CacheContents = field(default_factory=CacheContents)
    previous_epoch: int = 0


class Formation:
    """Forms the workers of a cell, again whenever one is lost.

    Args:
        config: which workers, and what to load into them.
        roster: where they are.
        start: word that this scheduler has drawn as it started.
        patience: with steps of the workers.
        predecessor: the group in use, beside which these workers are formed to take over from it:
            they serve its model, up to its max_model_len, under a larger epoch. None for the first
            workers of a cell.

    Attributes:
        workers: in order of rank.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        roster: Roster,
        start: str,
        patience: Patience,
        predecessor: FormedWorkers | None = None,
    ) -> None:
        self._start, self._patience = start, patience
        # Of each address, the last epoch that this scheduler has asked it to obey.
        self._asked: dict[str, int] = {}
        self._predecessor = predecessor
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
        workers afterwards. Weights that they hold are kept, and caches if all ranks have theirs.

        Args:
            scheduler_name: by which workers know who drives them, the same at every call.

        Raises:
            ConfigError: a worker is driven by another scheduler, or the settings do not fit the
                cache.
            ProtocolDiffersError: a worker is of a release that this one does not understand.
            ModelLoadError: the model cannot be served, or differs between the ranks.
            StaleEpochError: another scheduler took the workers over.
            WorkerFailedError: a worker failed in a way it did not foresee.
            UnavailableError: a worker cannot be reached; worth another attempt.
        """
        if self._config.waits_for_announcements:
            await self._find_workers()
        epoch, previous_epoch = await self._next_epoch(scheduler_name)
        for worker in self.workers:
            self._asked[worker.address] = epoch
            worker.open_heartbeats(self._config.peer_timeout_s, epoch, self._start, self._patience)
        # First of all: it ends a step for which some ranks wait, since others were not sent it.
        mirrors = await on_all(self.workers, lambda worker: worker.mirror(epoch, self._start))
        loaded, digest = await self._load_model(epoch, scheduler_name)
        kept = await self._kept_cache(mirrors)
        if self._formed is None:
            if self._predecessor is not None:
                self._check_successor(self._predecessor, loaded, digest)
            num_blocks = kept.num_blocks if kept else await self._choose_num_blocks(epoch)
            model = self._fit_model_len(loaded, num_blocks)
            formed = FormedWorkers(
                epoch,
                model,
                num_blocks,
                checkpoint_digest=digest,
                is_invariant=self._is_invariant,
            )
        elif (
            digest != self._formed.checkpoint_digest
            or self._loaded_model is None
            or not is_same(loaded, self._loaded_model)
        ):
            raise ModelLoadError(f"model {self._config.model} changed while it was served")
        else:
            # Not profiled again: a survivor's cache would count as used memory, and routers
            # already have the limits.
            model = described_as(loaded, self._formed.model)
            formed = replace(self._formed, epoch=epoch, model=model)
        spec = CacheSpec(formed.num_blocks, self._config, keeps_contents=kept is not None)
        caches = await on_all(self.workers, lambda worker: worker.init_cache(epoch, spec))
        # Without a configured size, a worker takes a share of what is free now.
        formed = replace(
            formed,
            num_host_blocks=min(cache.num_blocks for cache in caches),
            swap_block_us=max(cache.block_us for cache in caches),
            cache_bytes=max(cache.cache_bytes for cache in caches),
            contents=common_contents(mirrors, is_kept=kept is not None),
            previous_epoch=previous_epoch,
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

    async def _next_epoch(self, scheduler_name: str) -> tuple[int, int]:
        """Return an epoch above the clock's and any before, and the largest that workers have seen.

        Raises:
            ConfigError: a worker has seen an epoch that no clock gives, or ranks have unlike GPUs.
            ProtocolDiffersError: a worker is of a release that this one does not understand.
            UnavailableError: workers are of different versions.
        """
        descriptions = await on_all(
            self.workers, lambda worker: self._describe_unclaimed(worker, scheduler_name)
        )
        versions = sorted({description.version for description in descriptions})
        if len(versions) > 1:
            # Ranks compute parts of one sum, and draft the same tokens, each by itself.
            raise UnavailableError(
                f"the workers run Quire {' and '.join(versions)}: all ranks must run the same "
                "version; waiting for the others"
            )
        for worker, description in zip(self.workers, descriptions, strict=True):
            if description.epoch >= (limit := max_epoch()):
                raise ConfigError(
                    f"epoch of worker {worker.address}: must be less than {limit}, "
                    f"got {description.epoch}; restart the worker, or correct this clock"
                )
            log.info(
                "worker_found",
                rank=worker.rank,
                address=worker.address,
                device=description.device,
                isa=description.isa,
            )
        check_gpus(descriptions)
        are_cpus = all(description.device == "cpu" for description in descriptions)
        self._is_invariant = self._config.invariant or are_cpus
        if self._config.draft_model and not self._is_invariant:
            raise ConfigError("invariant: must be true for a draft model on GPUs, got false")
        seen = max(description.epoch for description in descriptions)
        before = self._formed or self._predecessor
        own = 0 if before is None else before.epoch
        return max(clock_epoch(), seen + 1, own + 1), seen

    async def _describe_unclaimed(
        self, worker: WorkerClient, scheduler_name: str
    ) -> WorkerDescription:
        """Describe a worker that no other scheduler drives.

        A dead scheduler releases its workers at once, one that is silent after the peer timeout.
        One that is alive keeps them: a newcomer has the larger epoch, and would take them by
        mistake.
        """
        deadline = time.monotonic() + CLAIM_PATIENCE_S
        while True:
            description = await self._describe(worker)
            self._check_not_replaced(worker, description)
            driver = description.scheduler_name
            if driver in ("", scheduler_name):
                return description
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"worker {worker.address} is driven by the scheduler {driver}; stop that one "
                    "first, or give this one other workers"
                )
            await asyncio.sleep(CLAIM_POLL_S)

    def _check_not_replaced(self, worker: WorkerClient, description: WorkerDescription) -> None:
        """Check that no scheduler has taken a worker over since this one asked it to obey.

        Raises:
            StaleEpochError: one has, another start under the same name perhaps: it is the rightful.
        """
        asked = self._asked.get(worker.address, description.epoch)
        if description.epoch > asked:
            raise StaleEpochError(
                f"worker {worker.address} obeys epoch {description.epoch} of another scheduler, or "
                f"of another start of this one, whose last was {asked}"
            )

    async def _load_model(self, epoch: int, scheduler_name: str) -> tuple[ModelInfo, bytes]:
        """Load the model on every rank; return its description and the checkpoint's digest."""
        config = self._config
        meeting_address, secret = "", b""
        if len(self.workers) > 1:
            meeting_address = await self.workers[0].open_rendezvous(epoch)
            # Drawn anew for each epoch: what one meeting has left behind is worth nothing in the
            # next.
            secret = secrets.token_bytes(MEETING_SECRET_BYTES)

        def load(worker: WorkerClient) -> Coroutine[Any, Any, LoadResponse]:
            spec = LoadSpec(config.model, config, worker.rank, config.num_ranks)
            meeting = Meeting(
                meeting_address, worker.host, epoch, config.distributed_timeout_s, secret
            )
            return worker.load_model(LoadRequest(spec, config.model_name, meeting, scheduler_name))

        first, *others = await on_all(self.workers, load)
        for worker, response in zip(self.workers[1:], others, strict=True):
            if (
                not is_same(response.model, first.model)
                or response.checkpoint_digest != first.checkpoint_digest
            ):
                raise ModelLoadError(
                    f"workers {self.workers[0].address} and {worker.address} have different models "
                    f"at {config.model}: all ranks must be given the same directory"
                )
        return replace(first.model, aliases=config.served_model_alias), first.checkpoint_digest

    async def _kept_cache(self, mirrors: Sequence[WorkerMirror]) -> CacheSpec | None:
        """Return the cache that all ranks have, also now that the model is loaded, or None."""
        config, cache = self._config, common_cache(mirrors, self._config)
        if cache is None or not config.enable_prefix_caching:
            return None
        num_wanted = config.num_gpu_blocks_override
        if self._formed is not None:
            num_wanted = self._formed.num_blocks
        described = await on_all(self.workers, self._describe)
        is_there = all(each.num_blocks == cache.num_blocks for each in described)
        return cache if is_there and num_wanted in (None, cache.num_blocks) else None

    async def _choose_num_blocks(self, epoch: int) -> int:
        config = self._config
        if config.num_gpu_blocks_override is not None:
            return config.num_gpu_blocks_override
        num_at = Counter(each.host for each in self.workers)
        profiles = await on_all(
            self.workers, lambda each: each.profile_cache(epoch, config, num_at[each.host])
        )
        num_blocks = min(profile.num_blocks for profile in profiles)
        if num_blocks == 0:
            raise ConfigError(
                "kv_cache_gib: must hold at least one block of "
                f"{max(profile.block_bytes for profile in profiles)} bytes, "
                f"got {config.kv_cache_memory_bytes or 'too little free memory'}"
            )
        return num_blocks

    def _check_successor(
        self, predecessor: FormedWorkers, loaded: ModelInfo, digest: bytes
    ) -> None:
        """Check that these workers give the tokens of those in use.

        Raises:
            ModelLoadError: they do not.
        """
        numerics_id, wanted = loaded.numerics_id, predecessor.model.numerics_id
        if numerics_id != wanted:
            raise ModelLoadError(
                f"numerics_id: must be {wanted or 'empty'}, as of the workers in use, "
                f"got {numerics_id or 'none'}: tokens would change"
            )
        same_length = replace(loaded, max_model_len=predecessor.model.max_model_len)
        if not is_same(same_length, predecessor.model) or digest != predecessor.checkpoint_digest:
            raise ModelLoadError(f"model {self._config.model} changed while it was served")

    def _fit_model_len(self, model: ModelInfo, num_blocks: int) -> ModelInfo:
        """Return the model, its max_model_len limited to what the cache can hold.

        Raises:
            ConfigError: it was given, or routers know it already, and the cache holds less.
        """
        num_slots = num_blocks * self._config.block_size
        if self._predecessor is not None:
            limit = self._predecessor.model.max_model_len
            if num_slots < limit:
                raise ConfigError(
                    f"tensor_parallel_size: must leave a cache of at least {limit} tokens, the "
                    f"max_model_len in use, got {num_slots} with {self._config.num_ranks}"
                )
            return replace(model, max_model_len=limit)
        if model.max_model_len <= num_slots:
            return model
        if self._config.max_model_len is not None:
            raise ConfigError(
                f"max_model_len: must be at most {num_slots}, the tokens that the cache holds, "
                f"got {self._config.max_model_len}"
            )
        log.warning("max_model_len_clamped", model=model.max_model_len, cache=num_slots)
        return replace(model, max_model_len=num_slots)
