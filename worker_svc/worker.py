"""The worker behind the service: a model, its cache and its sequences, used from one thread."""

import gc
import os
from dataclasses import replace

import torch

from quire.contract.engine_options import CacheOptions
from quire.contract.errors import ConfigError
from quire.contract.steps import MirroredSequence, SchedulerOutputs
from quire.contract.workers import (
    CacheProfile,
    CacheSpec,
    HostCache,
    LoadSpec,
    Meeting,
    WorkerDescription,
)
from quire.observe.log import get_logger
from quire.version import __version__
from worker_svc.cache.profile import choose_swap_space_bytes, profile_cache, warm_up
from worker_svc.device.base import Device
from worker_svc.device.cpu import CpuDevice
from worker_svc.loading.loader import LoadedModel, load_model
from worker_svc.parallel.communicator import ProcessCommunicator
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.pending import PendingStep
from worker_svc.steps.runner import ModelRunner

log = get_logger()

EXIT_DEVICE_LOST = 70


class Worker:
    """Loads, profiles, allocates and executes, in that order.

    Every method but `describe` must be called from the same thread.

    Args:
        device: device to compute on; None for the CPU.
        num_threads: threads of kernels and dense layers; None takes one per available core.
    """

    def __init__(self, device: Device | None = None, num_threads: int | None = None) -> None:
        self._device = device or CpuDevice()
        self._num_threads = num_threads
        # Layers keep it for life; it joins one group of ranks after the other.
        self._communicator = ProcessCommunicator(self._device.torch_device)
        self._loaded: LoadedModel | None = None
        self._runner: ModelRunner | None = None

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
            log.error("device_lost", device=self._device.name)
            os._exit(EXIT_DEVICE_LOST)

    def describe(self) -> WorkerDescription:
        """Describe this worker and what it holds; may be called from any thread."""
        loaded, runner = self._loaded, self._runner
        cache = None if runner is None else runner.cache_engine
        return WorkerDescription(
            version=__version__,
            device=self._device.name,
            isa=self._device.isa,
            model=None if loaded is None else loaded.info,
            num_blocks=0 if cache is None else cache.num_blocks,
            weight_bytes=0 if loaded is None else loaded.weight_bytes,
        )

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
            # NCCL cannot abort a group while graphs hold its captured operations.
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

    def profile_cache(self, options: CacheOptions) -> CacheProfile:
        """Return how many blocks fit beside the largest step.

        Raises:
            ConfigError: no model is loaded, or none fit.
        """
        loaded = self._require_model()
        # The old cache would count as taken memory.
        self._runner = None
        return profile_cache(loaded, options)

    def init_cache(self, spec: CacheSpec) -> HostCache:
        """Allocate the cache, forget every sequence and get ready to execute.

        Raises:
            ConfigError: no model is loaded, or the cache does not fit.
        """
        loaded, options = self._require_model(), spec.options
        self._runner = None
        runner = ModelRunner(
            loaded,
            options.block_size,
            spec.num_blocks,
            choose_swap_space_bytes(options.swap_space_bytes),
            options.max_num_seqs,
            enforce_eager=options.enforce_eager,
        )
        warm_up(loaded, runner.cache_engine.caches, options.block_size)
        runner.capture_graphs()
        self._runner = runner
        # All objects of now live as long as the process: collections need not visit them.
        gc.collect()
        gc.freeze()
        host_cache = HostCache(
            runner.cache_engine.num_host_blocks, runner.cache_engine.measure_block_us()
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

    def mirror(self) -> list[MirroredSequence]:
        """Return a summary of every sequence held; empty before there is a cache."""
        return [] if self._runner is None else self._runner.mirror.sequences()

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
