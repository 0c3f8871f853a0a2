"""What docs/numerics.md defines, rounding by rounding, in numpy: slow, and for ordinary numbers.

Arrays are float32; numbers of 16 bits come and go as torch tensors.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]

EXP2 = (6.931471825e-01, 2.402265072e-01, 5.550327897e-02, 9.618005715e-03, 1.340028364e-03,
        1.547589782e-04)  # fmt: skip
EXP = (5.000000000e-01, 1.666651815e-01, 4.166620597e-02, 8.368887939e-03, 1.395048574e-03)
TANH = (-3.333328366e-01, 1.333149076e-01, -5.374349654e-02, 2.065057866e-02, -5.717036780e-03)
ERFC = (2.820880115e-01, 2.822639346e-01, 2.450639606e-01, 1.862479299e-01, 5.254609883e-02,
        4.090077803e-02, -3.063584492e-02, -2.805064619e-01, 3.753645420e-01, -1.887088716e-01,
        3.537591174e-02)  # fmt: skip
LOG2_E = np.float32(1.4426950408889634)


def f32(x: Any) -> Any:
    """As float32; of a constant, the nearest."""
    return np.asarray(x, np.float32)[()]


def widen(x: Tensor) -> Floats:
    """A tensor as float32, which is exact."""
    return x.float().numpy()


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32, rounded once.

    The product is exact in float64. The sum is rounded there to odd, so that rounding it again to
    float32 gives what one rounding would.
    """
    product, addend = np.float64(a) * np.float64(b), np.float64(c)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    is_even = (np.asarray(total).view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return round_to_float32(np.where((error != 0) & is_even, odd, total))


def round_to_float32(x: Any) -> Any:
    """A float64 rounded as if exponents had no bound; zero if it is denormal then."""
    scale = np.where(np.abs(x) < 2.0**-100, 2.0**64, 1.0)
    rounded = (x * scale).astype(np.float32)
    is_denormal = np.abs(rounded) < scale * 2.0**-126
    return f32(np.where(is_denormal, np.copysign(0.0, x), rounded / scale))


def flush(x: Any) -> Any:
    """Zero for what is denormal."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def fold(sums: Floats) -> np.float32:
    """The sum of 2^k partial sums."""
    while len(sums) > 1:
        half = len(sums) // 2
        sums = sums[:half] + sums[half:]
    return np.float32(sums[0])


def row_sum(terms: Floats) -> np.float32:
    """S of a row."""
    sums = np.zeros(64, np.float32)
    for begin in range(0, len(terms), 64):
        part = terms[begin : begin + 64]
        sums[: len(part)] += part
    return fold(sums)


def polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    result = f32(coefficients[-1])
    for each in coefficients[-2::-1]:
        result = fma(result, x, f32(each))
    return result


def power(n: Any) -> Any:
    exact = np.ldexp(1.0, np.asarray(n, np.int64))
    return f32(np.where(n == -127, 0, np.where(n == 128, np.inf, exact)))


def exp2(x: Any) -> Any:
    x = np.maximum(f32(-127), np.minimum(f32(128), x))
    n = np.rint(x)
    f = x - n
    return flush(fma(polynomial(EXP2, f), f, f32(1)) * power(n))


def exp(x: Any) -> Any:
    x = np.maximum(f32(-88), np.minimum(f32(89), x))
    n = np.rint(x * LOG2_E)
    r = fma(n, f32(2.12194440e-4), fma(n, f32(-0.693359375), x))
    return flush((fma(polynomial(EXP, r) * r, r, r) + f32(1)) * power(n))


def sigmoid(x: Any) -> Any:
    return f32(1) / (f32(1) + exp(f32(0) - x))


def tanh(x: Any) -> Any:
    a, q = np.abs(x), x * x
    small = fma(polynomial(TANH, q) * q, x, x)
    y = f32(1) - f32(2) / (exp(a + a) + f32(1))
    return np.where(a < f32(0.625), small, np.where(x < 0, f32(0) - y, y))


def erfc(a: Any) -> Any:
    t = f32(1) / fma(a, f32(0.5), f32(1))
    return exp(f32(0) - a * a) * t * polynomial(ERFC, t)


def silu(x: Any) -> Any:
    return x * sigmoid(x)


def quick_gelu(x: Any) -> Any:
    return x * sigmoid(x * f32(1.702))


def gelu(x: Any) -> Any:
    y = f32(0.5) * erfc(np.abs(x) * f32(0.70710678))
    return x * np.where(x < 0, y, f32(1) - y)


def gelu_tanh(x: Any) -> Any:
    u = fma(x * x * f32(0.044715), x, x)
    return x * sigmoid(u * f32(1.59576912))


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    factor = f32(1) / np.sqrt(row_sum(x * x) / f32(len(x)) + f32(eps))
    return x * factor * weight


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    centred = x - row_sum(x) / f32(len(x))
    factor = f32(1) / np.sqrt(row_sum(centred * centred) / f32(len(x)) + f32(eps))
    return centred * factor * weight + bias


@dataclass(frozen=True, slots=True)
class Attention:
    """One query head of a sequence.

    Attributes:
        dtype: of queries.
        key: [L, D], as cached: integers in an int8 cache.
        value: [L, Dv].
        key_scale: [L] of an int8 cache, else None.
        value_scale: as key_scale.
        scale: of the dot products.
        window: tokens that a row sees, itself included.
        soft_cap: of the logits; 0 without one.
        slope: of ALiBi; 0 without.
        sink: the logit of a key without a value; None without one.
    """

    dtype: torch.dtype
    key: Floats
    value: Floats
    key_scale: Floats | None
    value_scale: Floats | None
    scale: float
    window: int
    soft_cap: float = 0.0
    slope: float = 0.0
    sink: float | None = None

    def row(self, query: Tensor, position: int) -> Tensor:
        """The result of a row, [Dv]."""
        is_bf16 = self.dtype == torch.bfloat16
        tokens = 64 if is_bf16 else 32
        columns = self.value.shape[1]
        begin = max(0, position + 1 - self.window)
        m, mass, acc = f32(-np.inf), f32(0), np.zeros(columns, np.float32)
        for partition in range(begin // 512 * 512, position + 1, 512):
            part = f32(-np.inf), f32(0), np.zeros(columns, np.float32)
            for tile in range(partition, min(partition + 512, position + 1), tokens):
                seen = np.arange(max(begin, tile), min(tile + tokens, position + 1))
                if len(seen):
                    part = self._add_tile(part, widen(query), position, tile, tokens, seen)
            largest = max(m, part[0])
            a, b = exp2(m - largest), exp2(part[0] - largest)
            m, mass, acc = largest, mass * a + part[1] * b, fma(part[2], b, acc * a)
        if self.sink is not None:
            logit = f32(self.sink) * LOG2_E
            largest = max(m, logit)
            a = exp2(m - largest)
            mass, acc = mass * a + exp2(logit - largest), acc * a
        return torch.from_numpy(fma(acc, f32(1) / mass, f32(0))).to(self.dtype)

    def _add_tile(
        self, state: tuple[Any, Any, Floats], query: Floats, position: int, tile: int, tokens: int,
        seen: NDArray[np.int64],
    ) -> tuple[Any, Any, Floats]:  # fmt: skip
        m, mass, acc = state
        logits = self._logits(self._scores(query, self.key[seen]), seen, position)
        largest = logits.max()
        if largest > m:
            factor = exp2(m - largest)
            m, mass, acc = largest, mass * factor, acc * factor
        weights = np.zeros(tokens, np.float32)
        weights[seen - tile] = exp2(logits - m)
        mass = mass + fold(weights)
        values = np.zeros((tokens, len(acc)), np.float32)
        values[seen - tile] = self.value[seen]
        if self.value_scale is not None:
            weights[seen - tile] *= self.value_scale[seen]
        order = np.arange(tokens)
        if self.dtype == torch.bfloat16:
            weights = widen(torch.from_numpy(weights).bfloat16())
            order = order.reshape(-1, 2)[:, ::-1].reshape(-1)
        for t in order:
            acc = fma(weights[t], values[t], acc)
        return m, mass, acc

    def _scores(self, query: Floats, key: Floats) -> Floats:
        if self.dtype != torch.bfloat16:
            score = np.zeros(len(key), np.float32)
            for d in range(len(query)):
                score = fma(query[d], key[:, d], score)
            return score
        widening = f32(1 if self.key_scale is None else 2.0**16)
        sums = [np.zeros(len(key), np.float32) for _ in range(4)]
        for group in range(0, len(query), 8):
            for e in range(4):
                for d in (group + 2 * e + 1, group + 2 * e):
                    sums[e] = fma(query[d], key[:, d] * widening, sums[e])
        total: Floats = ((sums[0] + sums[2]) + (sums[1] + sums[3])) / widening
        return total

    def _logits(self, score: Floats, seen: NDArray[np.int64], position: int) -> Floats:
        if self.key_scale is not None:
            score = score * self.key_scale[seen]
        scale, cap, slope = f32(self.scale), f32(self.soft_cap), f32(self.slope)
        logits = tanh(score * (scale / cap)) * (cap * LOG2_E) if cap else score * (scale * LOG2_E)
        if slope:
            logits = fma(slope * LOG2_E, f32(seen - position), logits)
        return f32(logits)
