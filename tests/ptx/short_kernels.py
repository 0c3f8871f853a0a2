"""Kernels of a few instructions, written by hand and interpreted."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.ptx import interpreter

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];\n"
REGISTERS = """
.reg .pred %p<8>; .reg .b16 %rs<8>; .reg .b32 %r<16>; .reg .f32 %f<16>; .reg .b64 %rd<16>;
.reg .f64 %fd<4>;
"""
# %rd1 to %rd3 are the parameters, %r1 the thread, %r2 four times that, %r3 the block, %rd4 the
# thread's word of %rd1.
BEGIN = """
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c];
mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, %ctaid.x;
mul.wide.u32 %rd5, %r1, 4; add.s64 %rd4, %rd1, %rd5;
"""


def run(body: str, *arguments: Tensor, **options: object) -> None:
    """Run a kernel of up to three tensors."""
    addresses = [each.data_ptr() for each in arguments] + [0] * (3 - len(arguments))
    text = f"{HEAD}.entry kernel(\n.param .u64 a,\n.param .u64 b,\n.param .u64 c\n)\n{{\n"
    text += f"{REGISTERS}{BEGIN}{body}\nret;\n}}\n"
    interpreter.run(text, addresses, **options)  # type: ignore[arg-type]


def words(values: Sequence[int] | int = 32) -> Tensor:
    """Return a tensor of 32-bit words."""
    return (
        torch.zeros(values, dtype=torch.int32)
        if isinstance(values, int)
        else torch.tensor(
            [each - 2**32 if each >= 2**31 else each for each in values], dtype=torch.int32
        )
    )
