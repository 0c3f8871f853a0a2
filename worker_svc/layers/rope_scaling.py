"""Frequencies of rotary position embeddings, in every scaling that the served families use.

A frequency depends on the model's configuration and its length limit alone, never on how long a
sequence happens to be. Where transformers recomputes them for the longest sequence of a batch
(dynamic NTK, longrope), the limit decides instead, once, since a cached key must not change its
meaning: up to the original length of the model the two agree.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker_svc.loading.hf_config import HfConfig

DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """How positions turn into angles.

    Attributes:
        kind: one of KINDS.
        theta: base of the wavelengths.
        max_position_embeddings: of the model.
        original_max_position_embeddings: length of the model before it was stretched.
        section: the configuration's own numbers of this kind.
        partial_rotary_factor: share of a head's features that are rotated.
    """

    kind: str
    theta: float
    max_position_embeddings: int
    original_max_position_embeddings: int
    section: HfConfig
    partial_rotary_factor: float = 1.0

    @classmethod
    def read(
        cls,
        hf: HfConfig,
        max_position_embeddings: int,
        *,
        default_theta: float = DEFAULT_THETA,
        default_partial_factor: float | None = None,
        section: HfConfig | None = None,
    ) -> "RopeParameters":
        """Read `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` (before).

        Args:
            hf: the model's configuration.
            max_position_embeddings: of the model.
            default_theta: base of the wavelengths where the configuration names none.
            default_partial_factor: share of a head to rotate where the configuration names none;
                None for families that rotate whole heads only.
            section: to read from, for families that have several; None takes the usual one.

        Raises:
            ModelLoadError: a kind that is not served, or a bad number.
        """
        if section is None:
            section = hf.section("rope_parameters" if "rope_parameters" in hf else "rope_scaling")
        kind = section.text("rope_type", section.text("type", "default"))
        kind = _ALIASES.get(kind, kind)
        if kind not in _FREQUENCIES:
            raise section.error("rope_type", f"must be one of {', '.join(KINDS)}, got {kind!r}")
        named_in = section if "partial_rotary_factor" in section else hf
        default_factor = 1.0 if default_partial_factor is None else default_partial_factor
        partial_factor = named_in.number("partial_rotary_factor", default_factor)
        if default_partial_factor is None and partial_factor != 1.0:
            raise named_in.error("partial_rotary_factor", f"must be 1, got {partial_factor:g}")
        original = section.integer("original_max_position_embeddings", max_position_embeddings)
        if "original_max_position_embeddings" in hf:
            original = hf.integer("original_max_position_embeddings")
        theta = section.number("rope_theta", hf.number("rope_theta", default_theta))
        return cls(kind, theta, max_position_embeddings, original, section, partial_factor)

    def rotary_dim(self, head_dim: int) -> int:
        """Return how many features of a head are rotated, the first ones.

        Raises:
            ModelLoadError: not an even number from 2 to `head_dim`.
        """
        dim = int(head_dim * self.partial_rotary_factor)
        if dim % 2 != 0 or not 2 <= dim <= head_dim:
            raise self.section.error(
                "partial_rotary_factor",
                f"must leave an even number of {head_dim} features to rotate, got {dim}",
            )
        return dim

    @property
    def max_context(self) -> int:
        """Longest sequence these parameters are made for."""
        if self.kind in ("linear", "dynamic"):
            return int(self.max_position_embeddings * self.section.number("factor"))
        if self.kind == "yarn":
            stretched = int(self.original_max_position_embeddings * self.factor)
            return max(self.max_position_embeddings, stretched)
        return self.max_position_embeddings

    @property
    def logit_factor(self) -> float:
        """Factor of attention's logits in DeepSeek's models, which have YaRN's `mscale_all_dim`."""
        weight = self.section.number("mscale_all_dim", 0.0)
        if self.kind == "default" or weight == 0.0:
            return 1.0
        return _mscale(self.factor, weight) ** 2

    def deciding_length(self, max_model_len: int) -> int:
        """Return the length that picks the frequencies; 0 where none does.

        Limits of which it is the same give the same frequencies.
        """
        if self.kind == "dynamic":
            return max(max_model_len, self.max_position_embeddings)
        if self.kind == "longrope" and max_model_len > self.original_max_position_embeddings:
            return self.max_position_embeddings
        return 0

    @property
    def factor(self) -> float:
        """How much longer the model was made."""
        ratio = self.max_position_embeddings / self.original_max_position_embeddings
        return self.section.number("factor", ratio)


def rope_frequencies(
    rope: RopeParameters, rotary_dim: int, max_model_len: int
) -> tuple[torch.Tensor, float]:
    """Return the inverse frequencies [rotary_dim / 2] float32 and the scale of cosines and sines.

    Args:
        rope: of the model.
        rotary_dim: features of a head that are rotated.
        max_model_len: limit of a sequence, which picks the variant of dynamic NTK and longrope.

    Raises:
        ModelLoadError: a number this kind needs is missing or wrong.
    """
    return _FREQUENCIES[rope.kind](rope, rotary_dim, max_model_len)


def _plain(theta: float, dim: int) -> torch.Tensor:
    return 1.0 / _wavelengths(theta, dim)


def _wavelengths(theta: float, dim: int) -> torch.Tensor:
    """Return theta^(2i / dim), rounded from float64: libraries differ in their last bits."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return (theta ** exponents.double()).float()


def _default(rope: RopeParameters, dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    return _plain(rope.theta, dim), 1.0


def _linear(rope: RopeParameters, dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    return _plain(rope.theta, dim) / rope.section.number("factor"), 1.0


def _dynamic(rope: RopeParameters, dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    factor = rope.section.number("factor")
    length = rope.deciding_length(max_model_len)
    stretch = factor * length / rope.max_position_embeddings - (factor - 1)
    return _plain(rope.theta * stretch ** (dim / (dim - 2)), dim), 1.0


def _yarn(rope: RopeParameters, dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    """Interpolate long waves, keep short ones, blend between. Source: Peng et al., 2023, YaRN."""
    section, factor = rope.section, rope.factor
    original = rope.original_max_position_embeddings

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = dimension_of(section.number("beta_fast", 32.0))
    high = dimension_of(section.number("beta_slow", 1.0))
    if section.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    wavelengths = _wavelengths(rope.theta, dim)
    kept, interpolated = 1.0 / wavelengths, 1.0 / (factor * wavelengths)
    frequencies = interpolated * ramp + kept * (1 - ramp)
    return frequencies, _yarn_scale(section, factor)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _yarn_scale(section: HfConfig, factor: float) -> float:
    if "attention_factor" in section:
        return section.number("attention_factor")
    if "mscale" in section and "mscale_all_dim" in section:
        of_rotated, of_all = (section.number(key) for key in ("mscale", "mscale_all_dim"))
        return _mscale(factor, of_rotated) / _mscale(factor, of_all)
    return _mscale(factor, 1.0)


def _llama3(rope: RopeParameters, dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    """Divide long waves by the factor, keep short ones, blend between, as Llama 3.1 does."""
    section = rope.section
    factor = section.number("factor")
    low = section.number("low_freq_factor")
    high = section.number("high_freq_factor")
    original = rope.original_max_position_embeddings
    plain = _plain(rope.theta, dim)
    wavelengths = 2 * math.pi / plain
    smooth = torch.clamp((original / wavelengths - low) / (high - low), 0, 1)
    return (1 - smooth) * plain / factor + smooth * plain, 1.0


def _longrope(rope: RopeParameters, dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    """Divide each frequency by a factor of its own. Source: Ding et al., 2024, LongRoPE."""
    original = rope.original_max_position_embeddings
    key = "long_factor" if rope.deciding_length(max_model_len) else "short_factor"
    factors = torch.tensor(rope.section.numbers(key), dtype=torch.float32)
    if factors.numel() != dim // 2:
        raise rope.section.error(key, f"must be {dim // 2} numbers, got {factors.numel()}")
    factor = rope.factor
    if "attention_factor" in rope.section:
        scale = rope.section.number("attention_factor")
    else:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return _plain(rope.theta, dim) / factors, scale


_FREQUENCIES: dict[str, Callable[[RopeParameters, int, int], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}

# What Phi-3 was first published with.
_ALIASES = {"su": "longrope"}

KINDS: tuple[str, ...] = tuple(_FREQUENCIES)
