"""Token embedding and LM head, cut over the ranks by vocabulary."""

import torch
import torch.nn.functional as functional

from worker_svc import ops
from worker_svc.layers.device_linear import make_linear
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


class VocabParallelEmbedding:
    """Rows of a table by token id; each rank holds an equal range of ids, the last maybe fewer.

    Args:
        weights: scope of the table.
        name: of the table.
        vocab_size: number of ids.
        embedding_dim: features of a row.
        parallel: the group.

    Attributes:
        weight: [ids of this rank, embedding_dim].
        vocab_size: over all ranks.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        vocab_size: int,
        embedding_dim: int,
        parallel: ParallelGroup,
    ) -> None:
        self.vocab_size = vocab_size
        self._parallel = parallel
        self._ids = _vocab_range(vocab_size, parallel)
        self.weight = weights.load(f"{name}.weight", (vocab_size, embedding_dim), (self._ids,))

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return [tokens, embedding_dim], memory of its own.

        Args:
            input_ids: [tokens] int64, in [0, vocab_size).
        """
        if self._parallel.size == 1:
            return functional.embedding(input_ids, self.weight)
        is_own = (input_ids >= self._ids.start) & (input_ids < self._ids.stop)
        if len(self._ids) == 0:
            partial = self.weight.new_zeros(input_ids.shape[0], self.weight.shape[1])
        else:
            rows = torch.where(is_own, input_ids - self._ids.start, 0)
            # Not a multiplication by the mask: a NaN in the row looked up instead would survive it.
            partial = functional.embedding(rows, self.weight)
            partial = torch.where(is_own.unsqueeze(1), partial, 0)
        return self._parallel.all_reduce(partial)


class PositionEmbedding:
    """A learned row for each position that a sequence may reach.

    Args:
        weights: scope of the table.
        name: of the table.
        num_positions: that the table serves.
        embedding_dim: features of a row.
        max_model_len: positions are in [0, max_model_len).
        offset: of the row of position 0, from the first row stored.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        num_positions: int,
        embedding_dim: int,
        max_model_len: int,
        *,
        offset: int = 0,
    ) -> None:
        shape = (num_positions + offset, embedding_dim)
        rows = range(offset, offset + max_model_len)
        self._weight = weights.load(f"{name}.weight", shape, (rows,))

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """Return [rows, embedding_dim].

        Args:
            positions: [rows] int64.
        """
        return functional.embedding(positions, self._weight)


class ParallelLMHead:
    """Logits over the vocabulary; each rank computes those of its ids.

    Args:
        weight: [ids of this rank, hidden_size]; the embedding's own table where they are tied.
        vocab_size: over all ranks.
        parallel: the group.
        bias: [ids of this rank] or None.
        soft_cap: logits become cap * tanh(logit / cap); None leaves them.
        scale: factor of the logits, before they are capped.

    Attributes:
        vocab_size: over all ranks.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        vocab_size: int,
        parallel: ParallelGroup,
        bias: torch.Tensor | None = None,
        soft_cap: float | None = None,
        scale: float = 1.0,
    ) -> None:
        # Every rank sends the same number of columns.
        missing = _vocab_share(vocab_size, parallel) - weight.shape[0]
        if missing > 0:
            weight = functional.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else functional.pad(bias, (0, missing))
        self.vocab_size = vocab_size
        self._linear = make_linear(weight, bias, vocab_size)
        self._parallel = parallel
        self._soft_cap = soft_cap
        self._scale = scale

    @classmethod
    def tied_or_own(
        cls,
        weights: Weights,
        name: str,
        embedding: VocabParallelEmbedding,
        parallel: ParallelGroup,
        *,
        tied: bool,
        bias: bool = False,
        soft_cap: float | None = None,
        scale: float = 1.0,
    ) -> "ParallelLMHead":
        """Return a head with the embedding's weights, or with its own of the same shape.

        Args:
            weights: scope of the head.
            name: of the head.
            embedding: of the same vocabulary.
            parallel: the group.
            tied: whether the weights are the embedding's.
            bias: whether the head has one, which is always its own.
            soft_cap: see the class.
            scale: see the class.

        Raises:
            ModelLoadError: a tensor is missing or misshapen.
        """
        vocab_size, ids = embedding.vocab_size, _vocab_range(embedding.vocab_size, parallel)
        weight = embedding.weight
        if not tied:
            weight = weights.load(f"{name}.weight", (vocab_size, weight.shape[1]), (ids,))
        own_bias = weights.load(f"{name}.bias", (vocab_size,), (ids,)) if bias else None
        return cls(weight, vocab_size, parallel, own_bias, soft_cap, scale)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab_size] float32.

        Args:
            hidden: [rows, hidden_size], only the rows that sample.
        """
        logits = self._parallel.all_gather_columns(self._linear(hidden))
        logits = logits[:, : self.vocab_size].float().contiguous()
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._soft_cap is not None:
            ops.apply_soft_cap(logits, self._soft_cap)
        return logits


class NoHead:
    """In the place of a head, of a model that has none: no row of it may sample.

    Its logits are not a number, so that a sequence which samples all the same fails alone.

    Args:
        vocab_size: over all ranks.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab_size] float32; see ParallelLMHead."""
        shape = len(hidden), self._vocab_size
        return torch.full(shape, torch.nan, dtype=torch.float32, device=hidden.device)


def _vocab_share(vocab_size: int, parallel: ParallelGroup) -> int:
    return -(-vocab_size // parallel.size)


def _vocab_range(vocab_size: int, parallel: ParallelGroup) -> range:
    share = _vocab_share(vocab_size, parallel)
    first = min(parallel.rank * share, vocab_size)
    return range(first, min(first + share, vocab_size))
