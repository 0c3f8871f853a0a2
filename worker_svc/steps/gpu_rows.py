"""What a GPU keeps of the sequences from step to step."""

import torch

from worker_svc.device.cuda import CudaDevice
from worker_svc.steps.rows import SequenceRows


class GpuRows:
    """Block tables and last tokens of all sequences, on a GPU.

    Args:
        device: the GPU.
        held: the sequences.

    Attributes:
        block_tables: [rows, max blocks] int32.
        last_tokens: [rows] int64, of each row the token that was sampled last.
        generation: how often the tensors have moved to other memory.
    """

    def __init__(self, device: CudaDevice, held: SequenceRows) -> None:
        self._device = device
        self._held = held
        self.generation = 0
        held.take_written()
        self._allocate()

    def update(self) -> None:
        """Copy what has changed in the block tables of the sequences.

        Mutates: block_tables, or all attributes if the number of rows has grown.
        """
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
        """Return the token ids [rows] int64 of Batch.input_codes [rows] int64."""
        sampled = self.last_tokens.index_select(0, (-1 - codes).clamp(min=0))
        return torch.where(codes < 0, sampled, codes)

    def _allocate(self) -> None:
        placed = self._device.place({"tables": self._held.block_tables})
        self.block_tables = placed["tables"]
        self.last_tokens = torch.zeros(
            len(self._held), dtype=torch.int64, device=self._device.torch_device
        )
