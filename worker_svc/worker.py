"""The worker behind the service: a model, its cache and its sequences, used from one thread."""

import gc
import os
from collections.abc import Sequence
from dataclasses import replace

import torch

from quire.contract.block_shipping import BlockLayout
from quire.contract.engine_options import CacheOptions
from quire.contract.errors import ConfigError, UnavailableError
from quire.contract.steps import SchedulerOutputs
from quire.contract.workers import (
    CachedBlock,
    CacheProfile,
    CacheSpec,
    HostCache,
    LoadSpec,
    Meeting,
    WorkerDescription,
    WorkerMirror,
)
from quire.observe.log import get_logger
from quire.version import __version__
from worker_svc.cache.profile import choose_swap_space_bytes, profile_cache, warm_up
from worker_svc.device.base import Device
from worker_svc.device.cpu import CpuDevice
from worker_svc.loading.loader import LoadedModel, load_model
from worker_svc.parallel.communicator import ProcessCommunicator
from worker_svc.parallel.group import ParallelGroup
from worker_svc.parallel.link_security import LinkSecurity
from worker_svc.sampling.grammars import GrammarTimes
from worker_svc.steps.pending import PendingStep
from worker_svc.steps.runner import ModelRunner

log = get_logger()

EXIT_DEVICE_LOST = 70


class Worker:
    """Loads, profiles, allocates and executes, in that order.

    Every method must, where it does not say otherwise, be called from the same thread.

    Args:
        device: device to compute on; None for the CPU.
        num_threads: threads of kernels and dense layers; None takes one per available core.
        link_security: how it may be linked to ranks on other machines.
    """

    def __init__(
        self,
        device: Device | None = None,
        num_threads: int | None = None,
        link_security: LinkSecurity | None = None,
    ) -> None:
        self._device = device or CpuDevice()
        self._num_threads = num_threads
        # Layers keep it for life; it joins one group of ranks after the other.
        self._communicator = ProcessCommunicator(self._device.torch_device, link_security)
        self._loaded: LoadedModel | None = None
        self._runner: ModelRunner | None = None
        # Of the runner.
        self._cache, self._host_cache = CacheSpec(0), HostCache(0, 0.0)

    @property
    def torch_device(self) -> torch.device:
        """The device on which it computes, as torch names it."""
        return self._device.torch_device

    def start_thread(self) -> None:
        """Prepare the calling thread for the other methods."""
        self._device.start_thread(self._num_threads)

    def start_waiting_thread(self) -> None:
        """Prepare the calling thread to wait for steps."""
        self._device.start_waiting_thread()

    def exit_if_device_is_lost(self) -> None:
        """Exit if the device has failed for good; the supervisor must restart the process."""
        if self._device.is_lost():
            log.critical("device_lost", device=self._device.name)
            os._exit(EXIT_DEVICE_LOST)

    def describe(self) -> WorkerDescription:
        """Describe this worker and what it holds; may be called from any thread."""
        loaded, runner = self._loaded, self._runner
        cache = None if runner is None else runner.cache_engine
        return WorkerDescription(
            version=__version__,
            device=self._device.name,
            isa=self._device.isa,
            gpu=self._device.gpu,
            model=None if loaded is None else loaded.info,
            num_blocks=0 if cache is None else cache.num_blocks,
            weight_bytes=0 if loaded is None else loaded.weight_bytes,
        )

    @property
    def waits_for_ranks(self) -> bool:
        """Whether its thread waits for other ranks; may be read from any thread."""
        return self._communicator.is_waiting

    def abandon_exchange(self) -> None:
        """Wait no longer for other ranks in the current group; may be called from any thread."""
        self._communicator.abandon()

    @property
    def rank(self) -> int | None:
        """Its rank in the group that shares the model; None until one is loaded."""
        loaded = self._loaded
        return None if loaded is None else loaded.spec.tensor_parallel_rank

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Memory of its cache, and memory of the host for swapped blocks."""
        runner = self._runner
        if runner is None:
            return 0, 0
        cache = runner.cache_engine
        return cache.device_bytes, cache.host_bytes

    @property
    def grammar_times(self) -> GrammarTimes:
        """What masks of grammars have taken since the cache was made."""
        grammars = None if self._runner is None else self._runner.grammars
        return GrammarTimes() if grammars is None else grammars.times

    def open_rendezvous(self, host: str) -> str:
        """Await the other ranks at an address of this machine; return "host:port".

        Raises:
            ConfigError: `host` is no address of this machine.
        """
        return self._communicator.open_meeting_place(host)

    def load_model(
        self, spec: LoadSpec, served_model_name: str, meeting: Meeting | None = None
    ) -> LoadedModel:
        """Meet the other ranks and load this rank's slice, unless it is loaded already.

        Mutates: another model, and its cache, are dropped first.

        Args:
            spec: which slice of which model.
            served_model_name: name that requests use; empty takes the directory's path.
            meeting: where to meet the other ranks; None if there are none.

        Raises:
            ModelLoadError: the directory cannot be served.
            UnavailableError: the other ranks did not come in time.
        """
        name = served_model_name or spec.model
        if spec.tensor_parallel_size > 1 and not self._device.is_immediate:
            # NCCL cannot abort a group while graphs hold its captured operations, and sums in
            # memory of peers would go on to read what is no longer there.
            self._runner = None
            gc.collect()
        # Join again each time: another rank may have restarted, or hang in a step that this one has
        # not received.
        rank, size = spec.tensor_parallel_rank, spec.tensor_parallel_size
        self._communicator.join(rank, size, meeting or Meeting())
        if self._loaded is not None and self._loaded.spec == spec:
            self._loaded = replace(self._loaded, info=replace(self._loaded.info, name=name))
            return self._loaded
        self._runner = None
        self._loaded = None
        adds_in_order = spec.options.invariant or self._device.torch_device.type == "cpu"
        parallel = ParallelGroup(rank, size, self._communicator, adds_in_order)
        loaded = self._loaded = load_model(spec, name, parallel, self._device)
        info = loaded.info
        log.info(
            "model_loaded",
            model=info.name,
            architecture=info.architecture,
            dtype=info.dtype,
            num_parameters=info.num_parameters,
            rank=rank,
            weight_bytes=loaded.weight_bytes,
        )
        return loaded

    def profile_cache(self, options: CacheOptions, num_at_host: int = 1) -> CacheProfile:
        """Return how many blocks fit beside the largest step.

        Args:
            options: of the cache.
            num_at_host: workers that share the memory of this machine, this one included.

        Raises:
            ConfigError: no model is loaded, or none fit.
        """
        loaded = self._require_model()
        # The old cache would count as taken memory.
        self._runner = None
        return profile_cache(loaded, options, num_at_host)

    def init_cache(self, spec: CacheSpec) -> HostCache:
        """Allocate the cache, or keep it, forget every sequence and get ready to execute.

        Raises:
            ConfigError: no model is loaded, or the cache does not fit.
            UnavailableError: the cache to keep is gone.
        """
        loaded, options = self._require_model(), spec.options
        if spec.keeps_contents:
            if self._runner is None or self._cache != replace(spec, keeps_contents=False):
                raise UnavailableError("the cache that was to be kept is gone")
            self._runner.forget_sequences()
            return self._host_cache
        self._runner = None
        # Torch would keep what an earlier cache, or the profile's, was made of.
        self._device.release_memory()
        runner = ModelRunner(
            loaded,
            options.block_size,
            spec.num_blocks,
            choose_swap_space_bytes(options.swap_space_bytes),
            options.max_num_seqs,
            enforce_eager=options.enforce_eager,
        )
        most_decoding = min(options.max_num_seqs, options.max_num_batched_tokens)
        warm_up(loaded, runner.cache_engine.caches, options.block_size, most_decoding)
        runner.capture_graphs(options.max_num_batched_tokens)
        self._runner, self._cache = runner, spec
        # All objects of now live as long as the process: collections need not visit them.
        gc.collect()
        gc.freeze()
        host_cache = self._host_cache = HostCache(
            runner.cache_engine.num_host_blocks,
            runner.cache_engine.measure_block_us(),
            runner.cache_engine.device_bytes,
        )
        log.info(
            "cache_allocated",
            num_blocks=spec.num_blocks,
            block_size=options.block_size,
            num_host_blocks=host_cache.num_blocks,
        )
        return host_cache

    def execute(self, outputs: SchedulerOutputs) -> PendingStep:
        """Start one step; on the CPU it is done on return.

        Raises:
            ConfigError: there is no cache yet.
            InvalidRequestError: the orders do not fit what is held.
        """
        return self._require_runner().execute(outputs)

    def leave_group(self) -> None:
        """Leave the other ranks, so that a step which not all were sent ends with an error."""
        # Groups of GPUs are left in `load_model`, once no graph holds their operations.
        if self._device.is_immediate:
            self._communicator.leave()

    def mirror(self) -> WorkerMirror:
        """Wait for the steps under way; return what is held, nothing before there is a cache."""
        if self._runner is None:
            return WorkerMirror()
        return replace(self._runner.read_mirror(), cache=self._cache)

    @property
    def block_layout(self) -> BlockLayout | None:
        """Layout of its blocks; None if they have no like. May be read from any thread."""
        loaded, runner = self._loaded, self._runner
        if loaded is None or runner is None or not loaded.info.numerics_id:
            return None
        spec = loaded.spec
        return BlockLayout(
            loaded.info.numerics_id,
            runner.cache_engine.block_size,
            spec.tensor_parallel_rank,
            spec.tensor_parallel_size,
        )

    @property
    def block_bytes(self) -> int:
        """Bytes of a block that is sent, over all layers; may be read from any thread."""
        runner = self._runner
        return 0 if runner is None else runner.cache_engine.block_bytes.block_bytes

    def settle(self) -> None:
        """Wait for the steps under way, and record what they have computed."""
        if self._runner is not None:
            self._runner.settle()

    def read_block(self, digest: bytes) -> bytes | None:
        """Return the bytes of a block by what it holds, None if none does; from any one thread."""
        runner = self._runner
        return None if runner is None else runner.read_block(digest)

    def write_blocks(self, blocks: Sequence[CachedBlock], contents: Sequence[bytes]) -> None:
        """Write blocks that no step uses.

        Args:
            blocks: the blocks, and what they hold then.
            contents: bytes of each.

        Raises:
            ConfigError: there is no cache yet.
            InvalidRequestError: a block number is out of bounds.
        """
        self._require_runner().write_blocks(blocks, contents)

    def reset(self) -> None:
        """Forget every sequence; keep weights and cache."""
        if self._runner is not None:
            self._runner.forget_sequences()

    def _require_model(self) -> LoadedModel:
        if self._loaded is None:
            raise ConfigError("model: must be loaded first, by LoadModel")
        return self._loaded

    def _require_runner(self) -> ModelRunner:
        if self._runner is None:
            raise ConfigError("cache: must be allocated first, by InitCache")
        return self._runner
