"""The kernels on a GPU, for tests whose tensors are on the CPU."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# Arguments that stay on the host, by operation: block mappings.
HOST_ARGUMENTS = {
    "copy_blocks": {2},
    "copy_blocks_v1": {2},
    "swap_blocks": {2},
    "swap_blocks_v1": {2},
    "plan_attention": {3, 4, 5, 6},
}
# Operations on memory of the host.
HOST_OPERATIONS = {"advise_huge_pages"}


def is_beginning_of_rows(tensor: Tensor, whole: Tensor) -> bool:
    """Return whether a tensor is a view of the first elements of each row of another."""
    return (
        (tensor.data_ptr(), tensor.dtype, tensor.stride(), tensor.shape[:-1])
        == (whole.data_ptr(), whole.dtype, whole.stride(), whole.shape[:-1])
        and tensor.ndim > 0
        and tensor.shape[-1] < whole.shape[-1]
    )


class KernelsElsewhere:
    """Takes the operands of an operation to a device and back, with their strides.

    Args:
        kernels: the compiled module.
        device: where operations run.
    """

    def __init__(self, kernels: ModuleType, device: str) -> None:
        self._kernels = kernels
        self._device = device

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation: Callable[..., Any] = getattr(self._kernels, name)
        if name in HOST_OPERATIONS:
            return operation

        def run(*arguments: Any) -> Any:
            # One copy of what is given twice: operations in place must stay so.
            copies: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

            def move(argument: Any) -> Any:
                if isinstance(argument, list):
                    return [move(each) for each in argument]
                if not isinstance(argument, Tensor):
                    return argument
                key = (argument.data_ptr(), argument.shape, argument.stride(), argument.dtype)
                for whole, copy in copies.values():
                    if is_beginning_of_rows(argument, whole):
                        return copy[..., : argument.shape[-1]]
                if key not in copies:
                    copy = torch.empty_strided(
                        argument.shape,
                        argument.stride(),
                        dtype=argument.dtype,
                        device=self._device,
                    )
                    copies[key] = argument, copy.copy_(argument)
                return copies[key][1]

            stay = HOST_ARGUMENTS.get(name, set())
            result = operation(
                *(each if i in stay else move(each) for i, each in enumerate(arguments))
            )
            if self._device == "cuda":
                # A copy to memory that is not pinned would keep other threads from starting what
                # the operation waits for.
                torch.cuda.current_stream().synchronize()
            for argument, copy in copies.values():
                argument.copy_(copy)
            return result

        return run
