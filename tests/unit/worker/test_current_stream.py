"""Kernels run on the stream of torch's work, with and without names that torch may drop."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker_svc.ops.current_stream import stream_source

PRIVATE = {"_cuda_getCurrentRawStream": lambda device: 100 + device, "_cuda_getDevice": lambda: 7}


@pytest.fixture
def has_begun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A torch that works on GPU 7, on stream 107 by the private names and 207 by the public one."""

    def current_stream(device: Any = None) -> Any:
        assert device is None, "its own device is the thread's"
        return SimpleNamespace(cuda_stream=207)

    for name, function in PRIVATE.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    return monkeypatch


def test_the_private_names_are_taken_while_there_are_any(has_begun: pytest.MonkeyPatch) -> None:
    assert stream_source()() == 107


@pytest.mark.parametrize("name", PRIVATE)
def test_the_public_name_stands_in_for_each(has_begun: pytest.MonkeyPatch, name: str) -> None:
    has_begun.delattr(torch._C, name)
    assert stream_source()() == 207


@pytest.mark.parametrize("is_public", [False, True])
def test_before_torch_works_on_a_gpu_it_is_the_default_stream(
    has_begun: pytest.MonkeyPatch, is_public: bool
) -> None:
    if is_public:
        has_begun.delattr(torch._C, "_cuda_getCurrentRawStream")
    stream = stream_source()
    assert stream() != 0
    has_begun.setattr(torch.cuda, "is_initialized", lambda: False)
    assert stream() == 0
