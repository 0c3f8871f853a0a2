"""The kernels of csrc as functions on torch tensors.

Every operation writes into tensors that the caller gives, runs without the GIL and checks all of
its arguments first: a wrong shape, dtype, stride or index raises ValueError (`argument: must be
..., got ...`). An operation runs where its tensors are, on the CPU or a GPU. Values on a GPU are
not read, so the caller must check indices there. Tensors have unit stride in their last dimension;
other dimensions may be strided, so views of a fused projection are fine.

Symbols: T tokens of the step, N sequences, H query heads, Hkv key/value heads, D head size,
B blocks, BS block size, MB blocks in the longest table. Activations, weights and caches share one
dtype out of float32, bfloat16 and float16; arithmetic is float32.

Caches may be quantised instead, as their dtype says; both caches of a layer have the same.
- torch.int8 [B, Hkv, BS, D + 4], on the CPU: a row is D integers in [-127, 127] and the float32
  that they are multiples of, the row's largest magnitude / 127. Nothing is calibrated. A row that
  holds an infinity or NaN reads back as NaN; one of magnitudes below 127 * 2^-126 as zeros.
- torch.float8_e4m3fn [B, Hkv, BS, D], on a GPU: an element times the scale of its head, an argument
  of every call. The cached number is x / scale rounded to nearest even, at most 448 in magnitude.
Operations that move blocks take them as they are. A dtype that the device does not support raises
ValueError, which names those it does.

Results follow the invariance rule: the bits of a row depend on that row and its context alone,
never on the batch, the chunk, the layout or the number of threads. On the CPU they are the same on
every instruction set; docs/numerics.md gives the order of roundings. GPUs have one of their own.
"""

from worker_svc.ops.attention import *
from worker_svc.ops.cache import *
from worker_svc.ops.experts import *
from worker_svc.ops.layers import *
from worker_svc.ops.logits import *
from worker_svc.ops.machine import *
from worker_svc.ops.peers import *
