"""Norms, rotary embedding, activations and linear layers.

worker_svc.ops documents what all operations share.
"""

from torch import Tensor

from worker_svc.ops import compiled

PANEL_FEATURES = 32
"""Features that packed weights keep together."""


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    """Divide rows by their root mean square and scale them (Zhang and Sennrich 2019).

    Args:
        out: As x, which it may be.
        x: [M, N], or [M, H, N] to normalise each head.
        weight: [N].
        eps: Added to the mean square.

    Mutates:
        out.
    """
    compiled._C.rms_norm(out, x, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """Add x to the residual stream and normalise the sum: residual += x; x = rms_norm(residual).

    The bits are those of the addition and rms_norm one after the other.

    Args:
        x: [M, N] or [M, H, N].
        residual: As x.
        weight: [N].
        eps: Added to the mean square.

    Mutates:
        x, residual.
    """
    compiled._C.fused_add_rms_norm(x, residual, weight, eps)


def layer_norm(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
    """Centre and scale rows to unit variance, then apply weight and bias (Ba et al. 2016).

    Args:
        out: As x, which it may be.
        x: [M, N] or [M, H, N].
        weight: [N].
        bias: [N], or None.
        eps: Added to the variance.

    Mutates:
        out.
    """
    compiled._C.layer_norm(out, x, weight, bias, eps)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    """Rotate pairs of elements by angles that grow with the position (Su et al. 2021).

    Args:
        positions: [T] int64, in [0, P).
        query: [T, H, D].
        key: [T, Hkv, D].
        cos_sin_cache: [P, R] float32, R / 2 cosines then R / 2 sines; R <= D, elements beyond R
            do not change.
        is_neox: Pair element i with i + R / 2 (GPT-NeoX, Llama) instead of 2i with 2i + 1 (GPT-J).

    Mutates:
        query, key.
    """
    compiled._C.rotary_embedding(positions, query, key, cos_sin_cache, is_neox)


def silu_and_mul(out: Tensor, x: Tensor) -> None:
    """Write silu(x[:, :N]) * x[:, N:] of x [M, 2N] to out [M, N]."""
    compiled._C.silu_and_mul(out, x)


def gelu_and_mul(out: Tensor, x: Tensor) -> None:
    """Write gelu(x[:, :N]) * x[:, N:] of x [M, 2N] to out [M, N]."""
    compiled._C.gelu_and_mul(out, x)


def gelu_tanh_and_mul(out: Tensor, x: Tensor) -> None:
    """Write gelu_tanh(x[:, :N]) * x[:, N:] of x [M, 2N] to out [M, N]."""
    compiled._C.gelu_tanh_and_mul(out, x)


def gelu(out: Tensor, x: Tensor) -> None:
    """Write x * Phi(x) of x [M, N] to out [M, N], which it may be (Hendrycks and Gimpel 2016)."""
    compiled._C.gelu(out, x)


def gelu_tanh(out: Tensor, x: Tensor) -> None:
    """Write the tanh approximation of gelu ("gelu_new", "gelu_pytorch_tanh") of x to out [M, N]."""
    compiled._C.gelu_tanh(out, x)


def quick_gelu(out: Tensor, x: Tensor) -> None:
    """Write x * sigmoid(1.702 x) of x [M, N] to out [M, N], which it may be."""
    compiled._C.quick_gelu(out, x)


def packed_shape(out_features: int, in_features: int) -> tuple[int, int, int]:
    """Return the shape of packed weights: panels of 32 features, pairs of elements of K, a pair."""
    return -(-out_features // PANEL_FEATURES), -(-in_features // 2), 2 * PANEL_FEATURES


def pack_weight(packed: Tensor, weight: Tensor) -> None:
    """Put weights into the order in which `packed_linear` reads them, on the CPU.

    Args:
        packed: `packed_shape(N, K)`, of the weights' dtype.
        weight: [N, K].

    Mutates:
        packed.
    """
    compiled._C.pack_weight(packed, weight)


def packed_linear(
    out: Tensor, x: Tensor, packed: Tensor, bias: Tensor | None, num_parts: int = 1
) -> None:
    """Multiply rows by packed weights, x @ weight.T + bias, on the CPU, by the invariance rule.

    docs/numerics.md ("Dense layers") has the order of roundings: the same for every number of rows,
    of threads and of ranks that share the features, and on every instruction set.

    Args:
        out: [M, N], of the dtype of x or float32; must not overlap the others.
        x: [M, K].
        packed: see `pack_weight`.
        bias: [N] float32, or None.
        num_parts: into which K is cut: 1, 2, 4 or 8; their sums are added as a binary tree.

    Mutates:
        out.
    """
    compiled._C.packed_linear(out, x, packed, bias, num_parts)


def packed_head_linear(out: Tensor, x: Tensor, packed: Tensor) -> None:
    """Multiply rows of each head by its packed weights, on the CPU.

    Each head has the bits that `packed_linear` of it alone gives.

    Args:
        out: [T, H, N], in the dtype of x; must not overlap the others.
        x: [T, H, K].
        packed: [H, *packed_shape(N, K)], each as `pack_weight` fills it.

    Mutates:
        out.

    Raises:
        ValueError: the operands are on a GPU, where `head_linear` computes it, or do not fit.
    """
    compiled._C.packed_head_linear(out, x, packed)


def weight_only_linear(
    out: Tensor,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    bits: int,
    total_features: int | None = None,
    num_parts: int = 1,
    total_parts: int | None = None,
) -> None:
    """Multiply rows by packed weights of 8 or 4 bits, x @ weight.T + bias, on a GPU.

    A weight is (integer - zero) * scale or float8 * scale in float32, rounded to the dtype of x, in
    the registers of the thread that multiplies it; the rest, and every bit, is `linear` of such
    weights.

    Args:
        out: [M, N], in the dtype of x or float32; must not overlap the others.
        x: [M, K] bfloat16 or float16; rows begin at multiples of 16 bytes.
        packed: [ceil(N / 16), P * ceil(K / P / 64), 128 * bits], float8_e4m3fn or, for integers
            without a sign, int8: for each tile of 16 features and each step of 64 elements of a
            part of K, two halves of 32 elements; in each, for the lanes (g, t) of a warp, two
            blocks of 16 elements; in each, of features g and g + 8 the elements 2 t, 2 t + 1,
            2 t + 8, 2 t + 9.
        scales: [ceil(N / 16), K / G, 16, 2] float32 for groups of G = 32, 64 or 128 elements of K:
            of each feature its scale, and 2^23 more than the integer that means zero, which float8
            does not have: anything.
        bias: [N], or None.
        bits: 8 or, of integers, 4; of 4, the first of two is in the lower half of a byte.
        total_features: see `linear`.
        num_parts: see `linear`; parts are of whole groups.
        total_parts: see `linear`.

    Mutates:
        out.

    Raises:
        ValueError: the operands are on the CPU, where `grouped_linear` computes it, or do not fit.
    """
    total_features, total_parts = total_features or out.shape[1], total_parts or num_parts
    compiled._C.weight_only_linear(
        out, x, packed, scales, bias, total_features, num_parts, total_parts, bits
    )


def grouped_linear(
    out: Tensor, x: Tensor, packed: Tensor, bias: Tensor | None, num_parts: int, bits: int
) -> None:
    """Multiply rows by packed weights of 8 or 4 bits, x @ weight.T + bias, on the CPU.

    A weight is (integer - zero) * scale in float32, rounded to the dtype of x; the rest is
    `packed_linear`.

    Args:
        out: [M, N], of the dtype of x or float32; must not overlap the others.
        x: [M, K].
        packed: [ceil(N / 32), K / G, bytes] int8: panels of 32 features, cut into groups of G = 32,
            64 or 128 elements of K. In a group lie pairs as in `packed_shape`, of 4 bits the first
            32 integers in the lower halves of bytes and the others in the upper ones; then 32
            float32 scales and 32 int8 zeros.
        bias: [N] float32, or None.
        num_parts: into which K is cut, each of whole groups: 1, 2, 4 or 8.
        bits: 8 or 4.

    Mutates:
        out.
    """
    compiled._C.grouped_linear(out, x, packed, bias, num_parts, bits)


def int8_linear(
    out: Tensor, x: Tensor, packed: Tensor, bias: Tensor | None, num_parts: int = 1
) -> None:
    """Multiply rows by packed weights of int8, x @ weight.T + bias, rows in int8, too.

    docs/numerics.md ("Dense layers in int8") has the scale of a row and the roundings. A
    row's bits depend on the row, the weights and num_parts alone; a GPU has those of a CPU.

    On a GPU the first call on a stream allocates device memory, later calls do not, so that they
    can be captured in a graph. Threads must not call it on one stream at the same time.

    Args:
        out: [M, N], of the dtype of x or float32; must not overlap the others.
        x: [M, K].
        packed: [ceil(N / 32), P * (ceil(K / P / 4) + 1), 128] int8: panels of 32 features, in which
            lie for each part of K fours of its elements, each plus 128 without a sign, [feature,
            element], and then the float32 scales of the features.
        bias: [N] float32, or None.
        num_parts: P, into which K is cut: 1, 2, 4 or 8; their sums are added as a binary tree.

    Mutates:
        out.
    """
    compiled._C.int8_linear(out, x, packed, bias, num_parts)


def linear(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    total_features: int | None = None,
    num_parts: int = 1,
    total_parts: int | None = None,
) -> None:
    """Multiply rows by weights, x @ weight.T + bias, on a GPU, by the invariance rule.

    A library of matrix products picks its algorithm by the number of rows. Here the sum over K has
    one order for every M and every alignment: K is cut into equal parts, and a part into sections
    by its length and the features and parts of the layer alone. Sections are summed in float32 (on
    tensor cores; of float32 operands by fused multiply-adds, not in TF32) and added in order; parts
    are added as neighbours in a binary tree, then the bias, and the result is rounded once.

    The first call on a stream allocates device memory, later calls do not, so that they can be
    captured in a graph. Threads must not call it on one stream at the same time.

    Args:
        out: [M, N], in the dtype of x or float32; must not overlap the others.
        x: [M, K].
        weight: [N, K].
        bias: [N], or None.
        total_features: features of the whole layer, N of which are computed here; None for N.
        num_parts: that K is cut into; 1, 2, 4 or 8.
        total_parts: of the whole layer, num_parts of which are computed here; None for num_parts.

    Mutates:
        out.

    Raises:
        ValueError: the operands are on the CPU, where `packed_linear` computes it; parts do not
            divide K.
    """
    total_features, total_parts = total_features or weight.shape[0], total_parts or num_parts
    compiled._C.linear(out, x, weight, bias, total_features, num_parts, total_parts)


def head_linear(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Multiply rows of each head by its weights, out[:, h] = x[:, h] @ weight[h].T, on a GPU.

    All heads are one launch, and each has the bits that `linear` of it alone gives.

    Args:
        out: [T, H, N], in the dtype of x; must not overlap the others.
        x: [T, H, K].
        weight: [H, N, K].

    Mutates:
        out.

    Raises:
        ValueError: the operands are on the CPU, where `packed_head_linear` computes it.
    """
    compiled._C.head_linear(out, x, weight)
