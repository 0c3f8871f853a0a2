"""A step's batch on a GPU, which keeps block tables and last tokens itself.

So a step need only bring what is new, and may be started before the tokens of the step before it
have come back to the host.
"""

import torch

from worker_svc.device.cuda import CudaDevice
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.steps.batch import StepBatch
from worker_svc.steps.inputs import (
    SamplerInputs,
    StepInputs,
    batch_arrays,
    sampler_arrays,
    take_sampler,
)
from worker_svc.steps.rows import SequenceRows


class DeviceRows:
    """Block tables and last tokens of all sequences, on a GPU.

    Args:
        device: where.
        held: the sequences.

    Attributes:
        block_tables: [rows, max blocks] int32.
        last_tokens: [rows] int64, of each row the token that was sampled last.
        generation: how often the tensors have been given other memory.
    """

    def __init__(self, device: CudaDevice, held: SequenceRows) -> None:
        self._device = device
        self._held = held
        self.generation = 0
        held.take_written()
        self._allocate()

    def update(self) -> None:
        """Bring what has changed in the tables of the sequences."""
        written = self._held.take_written()
        if len(self._held) != len(self.last_tokens):
            last_tokens = self.last_tokens
            self._allocate()
            self.last_tokens[: len(last_tokens)] = last_tokens
            self.generation += 1
        elif len(written) > 0:
            values = self._held.block_tables.reshape(-1)[written]
            placed = self._device.place({"where": written, "values": values})
            self.block_tables.view(-1).index_copy_(0, placed["where"], placed["values"])

    def token_ids(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the token ids of StepBatch.input_codes."""
        sampled = self.last_tokens.index_select(0, (-1 - codes).clamp(min=0))
        return torch.where(codes < 0, sampled, codes)

    def _allocate(self) -> None:
        placed = self._device.place({"tables": self._held.block_tables})
        self.block_tables = placed["tables"]
        self.last_tokens = torch.zeros(
            len(self._held), dtype=torch.int64, device=self._device.torch_device
        )


class DevicePlacement:
    """Of a model on a GPU.

    Args:
        device: where.
        held: the sequences.
        caches: of the model.

    Attributes:
        rows: what the device keeps of the sequences.
    """

    def __init__(self, device: CudaDevice, held: SequenceRows, caches: KVCaches) -> None:
        self._device = device
        self._held = held
        self._caches = caches
        self.rows = DeviceRows(device, held)
        self._plans = AttentionPlans()

    def place(self, batch: StepBatch) -> StepInputs:
        """See Placement."""
        self.rows.update()
        sampling = sampler_arrays(batch, self._held)
        placed = self._device.place({**batch_arrays(batch), "rows": batch.rows, **sampling})
        self._plans.begin(torch.from_numpy(batch.seq_lens), torch.from_numpy(batch.query_start_loc))
        tables = self.rows.block_tables.index_select(0, placed["rows"])
        return StepInputs(
            input_ids=self.rows.token_ids(placed["input_codes"]),
            positions=placed["positions"],
            metadata=AttentionMetadata(
                caches=self._caches,
                num_tokens=batch.num_tokens,
                slot_mapping=placed["slot_mapping"],
                block_tables=tables[:, : batch.table_width],
                seq_lens=placed["seq_lens"],
                query_start_loc=placed["query_start_loc"],
                plans=self._plans,
            ),
            sample_rows=placed["sample_rows"],
            sampler=take_sampler(placed, sampling),
        )

    def keep_sampled(self, sampler: SamplerInputs, token_ids: torch.Tensor) -> None:
        """See Placement."""
        self.rows.last_tokens.index_copy_(0, sampler.rows, token_ids)
