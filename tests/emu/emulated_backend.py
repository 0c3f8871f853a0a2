"""The emulated GPU as torch knows it: a device of a type of its own."""

import types
from typing import Any

import torch

from tests.emu.emulated_torch import DEVICE_TYPE, Machine

_registered: list[object] = []


def register() -> None:
    """Make the device known to torch, once in the life of the process."""
    if _registered:
        return

    class Guard(torch._C._acc.DeviceGuard):  # type: ignore[name-defined, misc]
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1

    class Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined, misc]
        def is_available(self) -> bool:
            return True

        def has_primary_context(self, index: int) -> bool:
            return True

        def is_built(self) -> bool:
            return True

    torch.utils.rename_privateuse1_backend(DEVICE_TYPE)
    _registered.extend((Guard(), Hooks()))
    torch._C._acc.register_python_privateuseone_hook(_registered[1])
    torch._C._acc.register_python_privateuseone_device_guard(_registered[0])
    module = types.ModuleType(f"torch.{DEVICE_TYPE}")
    module.__dict__.update(
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
        is_initialized=lambda: True,
        is_available=lambda: True,
        current_device=lambda: Machine.current.device.index,
        device_count=lambda: Machine.current.device.index + 1,
        manual_seed_all=lambda seed: None,
    )
    torch._register_device_module(DEVICE_TYPE, module)
