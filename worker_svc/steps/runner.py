"""Runs steps: orders go in, tokens come out."""

from collections.abc import Sequence

import numpy as np
import torch

from quire.contract.errors import InvalidRequestError, UnavailableError
from quire.contract.steps import SchedulerOutputs
from quire.contract.workers import CachedBlock, WorkerMirror
from quire.observe.log import get_logger
from worker_svc.arrays import IntArray
from worker_svc.cache.engine import CacheEngine
from worker_svc.device.base import Fetched
from worker_svc.device.cuda import CudaDevice
from worker_svc.loading.grammars import grammars_of
from worker_svc.loading.loader import LoadedModel
from worker_svc.sampling.pooling import Pooler
from worker_svc.sampling.sampler import Sampler
from worker_svc.steps.batch import Batch
from worker_svc.steps.draft_model import DraftModel, drafts_of_rank_0
from worker_svc.steps.drafts import Drafter
from worker_svc.steps.gpu_inputs import GpuInputs
from worker_svc.steps.inputs import CpuInputs, Inputs
from worker_svc.steps.mirror import SequenceMirror
from worker_svc.steps.pending import CheckedCopies, Marks, PendingStep, PendingSteps

log = get_logger()


class ModelRunner:
    """A model, its cache and the mirror of its live sequences.

    On a GPU a step starts before the one before it has ended: `execute` returns at once, and the
    mirror learns the tokens when they have come.

    Args:
        loaded: the model.
        block_size: tokens of a block.
        num_blocks: blocks of the cache.
        swap_space_bytes: host memory for swapped blocks.
        max_num_seqs: limit on the sequences of a step; None if it is not known, then there are no
            graphs on a GPU.
        enforce_eager: whether to do without graphs.
        takes_grammars: whether sequences may have grammars, for which the tokenizer is read.

    Attributes:
        cache_engine: the paged cache.
        mirror: the sequences held.
        inputs: brings batches to the device.
        grammars: of the sequences; None where there are none, and on ranks above 0, which sample
            nothing.
        sampler: chooses tokens.
        pooler: makes vectors.
        last_step_id: the last step that was started without an error since sequences were
            forgotten; 0 for none.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        block_size: int,
        num_blocks: int,
        swap_space_bytes: int = 0,
        max_num_seqs: int | None = None,
        *,
        enforce_eager: bool = False,
        takes_grammars: bool = True,
    ) -> None:
        self._model = model = loaded.model
        self._communicator = loaded.parallel.communicator
        self._device = device = loaded.device
        self.cache_engine = CacheEngine(loaded, block_size, num_blocks, swap_space_bytes)
        self.mirror = SequenceMirror(
            block_size,
            num_blocks,
            loaded.info.max_model_len,
            loaded.info.vocab_size,
            loaded.info.eos_token_ids,
            # Twice: forks come before releases, and tables that grow stop the device.
            None if max_num_seqs is None else 2 * max_num_seqs,
        )
        held, caches = self.mirror.held, self.cache_engine.caches
        self.inputs: Inputs
        if isinstance(device, CudaDevice):
            graphs_up_to = None if enforce_eager else max_num_seqs
            self.inputs = GpuInputs(device, model, held, caches, graphs_up_to)
        else:
            # Exchanges of ranks go through torch's own threads, which no graph records.
            use_graphs = loaded.parallel.size == 1 and not enforce_eager
            self.inputs = CpuInputs(device, model, held, caches, use_graphs=use_graphs)
        if loaded.spec.options.draft_model:
            self.mirror.drafter = self._draft_model(loaded, enforce_eager=enforce_eager)
        self.last_step_id = 0
        self._pending = PendingSteps(self.mirror)
        self.grammars = grammars_of(loaded) if takes_grammars else None
        held.sampling.grammars = self.grammars
        self.sampler = Sampler(
            loaded.parallel,
            device,
            held,
            model.compute_logits,
            self._pending.settle,
            self.grammars,
        )
        self.pooler = Pooler(loaded.parallel, device, held)

    def _draft_model(self, loaded: LoadedModel, *, enforce_eager: bool) -> Drafter:
        """Return what drafts with the draft model that rank 0 holds."""
        device, draft, caches = self._device, loaded.draft, self.cache_engine.draft_caches
        drafter = None
        if draft is not None and caches is not None:
            inputs: Inputs
            if isinstance(self.inputs, GpuInputs) and isinstance(device, CudaDevice):
                rows = self.inputs.rows
                inputs = GpuInputs(device, draft.model, self.mirror.held, caches, rows=rows)
            else:
                graphs = not enforce_eager
                inputs = CpuInputs(device, draft.model, self.mirror.held, caches, use_graphs=graphs)
            drafter = DraftModel(device, draft.model, inputs)
            if loaded.parallel.size == 1:
                return drafter
        return drafts_of_rank_0(drafter, loaded.parallel, device)

    @torch.inference_mode()
    def capture_graphs(self, max_num_batched_tokens: int | None = None) -> None:
        """Capture decode steps as graphs, where they are used; do so before the first step.

        Args:
            max_num_batched_tokens: see Inputs.
        """
        self.inputs.capture_graphs(max_num_batched_tokens)

    @torch.inference_mode()
    def execute(self, outputs: SchedulerOutputs) -> PendingStep:
        """Apply the orders of a step, start its batch and sample.

        Mutates: mirror and cache.

        Raises:
            InvalidRequestError: the orders do not fit what is held; then nothing is known of blocks
                either. After any other error only the sequences are forgotten.
        """
        # On a GPU the last step may be under way still: the one before it has ended by now, or
        # will before a third could start. A fork copies tokens, and a draft follows from them.
        reads_tokens = bool(outputs.forks or outputs.num_draft_slots)
        try:
            self._pending.settle(leave=0 if self._device.is_immediate or reads_tokens else 1)
            batch = self.mirror.apply(outputs)
            self.sampler.start_masks(batch)
            self.cache_engine.move(
                _pairs(outputs.blocks_to_swap_out),
                _pairs(outputs.blocks_to_swap_in),
                _pairs(outputs.blocks_to_copy),
            )
            step = self.compute(batch)
        except InvalidRequestError:
            self.mirror.clear()
            self.mirror.contents.clear()
            raise
        except Exception:
            self.mirror.discard(outputs)
            raise
        self._pending.add(step)
        self.last_step_id = outputs.step_id
        return step

    def compute(self, batch: Batch, *, layer_by_layer: bool = False) -> PendingStep:
        """Start a batch and sample, once the blocks that move are in place.

        Mutates: the cache.

        Args:
            batch: the batch.
            layer_by_layer: whether not to take a graph, as where blocks move.
        """
        mover = self.cache_engine.mover
        placed = self.inputs.place(batch, layer_by_layer=layer_by_layer or mover.is_moving)

        started = self._device.mark()
        hidden = logits = torch.empty(0, 0, device=self._device.torch_device)
        if batch.num_tokens > 0:
            hidden = placed.forward()
        if len(batch.sample_rows) > 0:
            rows = placed.sample_rows
            last_hidden = hidden if rows is None else hidden.index_select(0, rows)
            logits = self._model.compute_logits(last_hidden)
        computed = self._device.mark()
        sampled = self.sampler.sample(batch, hidden, logits, placed.sampling_columns)
        self.inputs.keep_sampled(placed, sampled.token_ids)
        pooled = self.pooler.pool(batch, hidden)
        marks = Marks(started, computed, self._device.mark())

        # Fetched after the last mark: when the tokens have come, the mark has passed.
        wanted = (sampled.token_ids, sampled.ok, *sampled.reported, *pooled.tensors)
        failure = self._communicator.failure()
        fetched: Fetched
        if failure is None:
            fetched = self._device.fetch(wanted)
        else:
            fetched = CheckedCopies(self._device.fetch((*wanted, failure)))
        return PendingStep(self._device, batch, sampled, pooled, fetched, marks, mover.finish())

    def read_mirror(self) -> WorkerMirror:
        """Wait for the steps under way and return what is held, but the size of the cache."""
        self._settle_or_forget()
        contents = self.mirror.contents
        self.mirror.touch_contents()
        return WorkerMirror(
            tuple(self.mirror.sequences()),
            self.last_step_id,
            blocks=contents.blocks,
            host_blocks=contents.host_blocks,
        )

    def settle(self) -> None:
        """Wait for the steps under way, and record what they have computed."""
        self._pending.settle()

    def _settle_or_forget(self) -> None:
        """Wait for the steps under way; after those that other ranks have left nothing is held."""
        try:
            self._pending.settle()
        except UnavailableError as error:
            log.warning("steps_lost", reason=str(error))

    def read_block(self, digest: bytes) -> bytes | None:
        """Return the bytes of a block by what it holds, None if none does; from any one thread."""
        contents = self.mirror.contents
        found = contents.find(digest)
        if found is None:
            return None
        read = self.cache_engine.block_bytes.read(found[0])
        # A block that has lost its digest meanwhile may have been written while it was read.
        return read if contents.still_holds(*found) else None

    def write_blocks(self, blocks: Sequence[CachedBlock], contents: Sequence[bytes]) -> None:
        """Write blocks that no step uses, and record what they hold.

        Mutates: mirror and cache.

        Args:
            blocks: the blocks, and what they hold then.
            contents: bytes of each.

        Raises:
            InvalidRequestError: a block number is out of bounds.
        """
        block_ids = [block.block_id for block in blocks]
        if block_ids and max(block_ids) >= (limit := self.cache_engine.num_blocks):
            raise InvalidRequestError("blocks", f"must be below {limit}, got {max(block_ids)}")
        self.mirror.contents.drop(block_ids)
        self.cache_engine.block_bytes.write(block_ids, contents)
        for block in blocks:
            self.mirror.contents.add(block)

    def forget_sequences(self) -> None:
        """Forget every sequence, once the steps under way are done; what blocks hold is kept."""
        self._settle_or_forget()
        self.mirror.clear()
        self.last_step_id = 0


def _pairs(pairs: list[tuple[int, int]]) -> IntArray:
    """Return pairs of blocks as an array [len(pairs), 2]."""
    return np.array(pairs, np.int64).reshape(-1, 2)
