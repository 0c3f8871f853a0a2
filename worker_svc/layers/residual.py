"""The residual stream, and layers that arrange attention and MLP around it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker_svc.layers.attention import AttentionMetadata
from worker_svc.layers.norm import Norm

Attention = Callable[[torch.Tensor, torch.Tensor, AttentionMetadata], torch.Tensor]
"""From hidden states [rows, hidden_size] to the same, given positions [rows] int64 and the step's
metadata.

Mutates: the layer's cache.
"""

MLP = Callable[[torch.Tensor], torch.Tensor]
"""From hidden states to hidden states, both [rows, hidden_size]: gated, plain or of experts."""


class ResidualStream:
    """The sum that layers read and add to, [rows, hidden_size].

    The last summand is added only when the stream is read, so that a sum and the norm that reads it
    can be one kernel.

    Args:
        value: what the first layer reads; becomes the stream's own memory.
    """

    __slots__ = ("_summand", "_value")

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value
        self._summand: torch.Tensor | None = None

    @property
    def value(self) -> torch.Tensor:
        """The sum. Valid until the stream is read again after an `add`."""
        if self._summand is not None:
            self._value += self._summand
            self._summand = None
        return self._value

    def add(self, summand: torch.Tensor) -> None:
        """Add to the stream.

        Mutates: the stream and, when it is read, `summand`.

        Args:
            summand: [rows, hidden_size]; becomes the stream's own memory.
        """
        if self._summand is not None:
            self._value += self._summand
        self._summand = summand

    def normed(self, norm: Norm) -> torch.Tensor:
        """Return the norm of the stream, memory of its own.

        Mutates: the stream, to which the last summand is added.
        """
        if self._summand is None:
            return norm(self._value)
        summand, self._summand = self._summand, None
        return norm.add_and_norm(summand, self._value)

    def read(self, norm: Norm | None) -> torch.Tensor:
        """Return the norm of the stream, or without one `value`.

        Mutates: the stream, to which the last summand is added.
        """
        return self.value if norm is None else self.normed(norm)

    def normalize(self, norm: Norm) -> torch.Tensor:
        """Replace the stream by its norm, and return it."""
        self._value = self.normed(norm)
        return self._value


DecoderLayer = Callable[[ResidualStream, torch.Tensor, AttentionMetadata], None]
"""Adds to a residual stream, given positions [rows] int64 and the step's metadata.

Mutates: the stream and the layer's key/value cache.
"""


@dataclass(frozen=True, slots=True)
class SequentialLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)) of that sum; None in the place of no norm."""

    attention_norm: Norm | None
    attention: Attention
    mlp_norm: Norm | None
    mlp: MLP

    def __call__(
        self, stream: ResidualStream, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """See DecoderLayer."""
        stream.add(self.attention(stream.read(self.attention_norm), positions, metadata))
        stream.add(self.mlp(stream.read(self.mlp_norm)))


@dataclass(frozen=True, slots=True)
class ParallelLayer:
    """x + attention(norm(x)) + mlp(norm(x)): both read the stream before the layer.

    Source: Wang and Komatsuzaki, 2021, GPT-J-6B.

    Attributes:
        attention_norm: of what attention reads.
        attention: of this layer.
        mlp_norm: of what the MLP reads; None where it reads what attention does.
        mlp: of this layer.
    """

    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm | None
    mlp: MLP

    def __call__(
        self, stream: ResidualStream, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """See DecoderLayer."""
        normed = stream.normed(self.attention_norm)
        attended = self.attention(normed, positions, metadata)
        if self.mlp_norm is not None:
            normed = stream.normed(self.mlp_norm)
        stream.add(attended + self.mlp(normed))


@dataclass(frozen=True, slots=True)
class PostNormLayer:
    """norm(x + attention(x)), then norm(x + mlp(x)) of that. Source: Vaswani et al., 2017."""

    attention: Attention
    attention_norm: Norm
    mlp: MLP
    mlp_norm: Norm

    def __call__(
        self, stream: ResidualStream, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """See DecoderLayer."""
        stream.add(self.attention(stream.value, positions, metadata))
        stream.add(self.mlp(stream.normalize(self.attention_norm)))
        stream.normalize(self.mlp_norm)
