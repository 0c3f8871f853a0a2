"""Random weights, for benchmarks of models without a checkpoint."""

import zlib

import torch


class DummyCheckpoint:
    """Returns random values for every tensor, of any shape.

    A tensor depends on its name and shape alone, so that ranks cut their parts from the same one.
    Matrices and norms keep the size of their inputs, so that logits stay finite.

    Args:
        device: of the model.
    """

    def __init__(self, device: torch.device) -> None:
        # A GPU generates billions of numbers by itself; other devices copy those of the CPU.
        self._device = device if device.type == "cuda" else torch.device("cpu")

    def has(self, name: str) -> bool:
        """Return True: every tensor exists."""
        return True

    def read(self, name: str, shape: tuple[int, ...], part: tuple[range, ...]) -> torch.Tensor:
        """Return part of a tensor.

        Args:
            name: as in a checkpoint.
            shape: of the whole tensor.
            part: indices of each leading dimension; of those not named, all.
        """
        if len(shape) == 1:
            make = torch.zeros if name.endswith("bias") else torch.ones
            whole = make(shape, device=self._device)
        else:
            random = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
            bound = (3 / shape[-1]) ** 0.5
            whole = torch.empty(shape, device=self._device)
            whole.uniform_(-bound, bound, generator=random)
        return whole[tuple(slice(item.start, item.stop) for item in part) or ...]
