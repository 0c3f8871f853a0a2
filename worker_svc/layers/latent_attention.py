"""Multi-head latent attention: all heads read one cached row, from which keys and values follow.

A row is a normed latent c and behind it a rotated key that all heads share. A head's key is
`W_UK c` with the shared key behind it, and its value `W_UV c`; neither is ever computed. Instead a
query is multiplied by W_UK's transpose, so that its products with the rows are those with the keys,
and the sum of the latents, which attention returns, by W_UV.

Prompts, chunks and single tokens are all computed so: a token's bits do not depend on how its step
was cut.

Source: DeepSeek-V2, 2024, section 2.1; "absorbed" as at the end of 2.1.2.
"""

from dataclasses import dataclass

import torch

from worker_svc import ops
from worker_svc.layers.attention import AttentionMetadata, PagedAttention
from worker_svc.layers.chain import TensorFunction
from worker_svc.layers.head_linear import HeadLinear
from worker_svc.layers.linear import (
    ColumnParallelLinear,
    HeadShare,
    LinearSource,
    MergedColumnParallelLinear,
)
from worker_svc.layers.norm import RMSNorm
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.loading.weights import Weights

# Of the norms of latents, whatever that of the other norms is.
LATENT_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Features of the parts of latent attention, as DeepSeek's configurations name them.

    Attributes:
        hidden_size: of the residual stream.
        q_lora_rank: of the latent that queries are made from; None where they are made from hidden
            states.
        kv_lora_rank: of the latent that keys and values are made from.
        qk_nope_head_dim: of a head's query and key that are not rotated.
        qk_rope_head_dim: of those that are.
        v_head_dim: of a head's value.
    """

    hidden_size: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        """Features of a head's query."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def row(self) -> int:
        """Elements of a cached row."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class LatentProjections:
    """From hidden states to queries and rows, neither rotated.

    Args:
        weights: scope of the attention.
        sizes: of its parts.
        heads: those of this rank.
        bias: whether the layers that read hidden states to make latents have one.

    Raises:
        ModelLoadError: a tensor is missing or misshapen.
    """

    def __init__(
        self, weights: Weights, sizes: LatentSizes, heads: HeadShare, *, bias: bool
    ) -> None:
        self._sizes = sizes
        width = heads.total_heads * sizes.qk_head_dim
        q_lora_rank = sizes.q_lora_rank
        latents = [LinearSource("kv_a_proj_with_mqa", sizes.row, range(sizes.row))]
        self._query_norm: RMSNorm | None = None
        if q_lora_rank is not None:
            latents.insert(0, LinearSource("q_a_proj", q_lora_rank, range(q_lora_rank)))
            self._query_norm = RMSNorm(weights, "q_a_layernorm", q_lora_rank, LATENT_NORM_EPS)
        # Every rank computes all latents.
        self._latents = MergedColumnParallelLinear(weights, latents, sizes.hidden_size, bias=bias)
        self._query = ColumnParallelLinear(
            weights,
            "q_proj" if q_lora_rank is None else "q_b_proj",
            q_lora_rank or sizes.hidden_size,
            width,
            heads.parallel,
            bias=False,
        )
        self._row_norm = RMSNorm(weights, "kv_a_layernorm", sizes.kv_lora_rank, LATENT_NORM_EPS)

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries [tokens, heads of this rank, qk_head_dim] and rows [tokens, row].

        Args:
            hidden: [tokens, hidden_size].
        """
        sizes = self._sizes
        latents = self._latents(hidden)
        rows = latents[:, -sizes.row :]
        source = hidden
        if self._query_norm is not None:
            source = self._query_norm(latents[:, : -sizes.row])
        query = self._query(source).view(len(hidden), -1, sizes.qk_head_dim)
        self._row_norm.norm_in_place(rows[:, : sizes.kv_lora_rank])
        return query, rows


class LatentAttention:
    """Projects to queries and rows, attends over rows, and projects back.

    Args:
        weights: scope of the attention.
        sizes: of its parts.
        heads: those of this rank; one key/value head of `sizes.row` features.
        rotary: rotates the rotated parts by their position.
        attention: over the layer's cache of rows.
        out: from the values of this rank's heads to hidden states, memory of its own.
        bias: see LatentProjections.

    Raises:
        ModelLoadError: a tensor is missing or misshapen.
    """

    def __init__(
        self,
        weights: Weights,
        sizes: LatentSizes,
        heads: HeadShare,
        rotary: RotaryEmbedding,
        attention: PagedAttention,
        out: TensorFunction,
        *,
        bias: bool,
    ) -> None:
        self._sizes = sizes
        self._projections = LatentProjections(weights, sizes, heads, bias=bias)
        of_head = sizes.qk_nope_head_dim + sizes.v_head_dim
        own = range(heads.heads.start * of_head, heads.heads.stop * of_head)
        shape = heads.total_heads * of_head, sizes.kv_lora_rank
        # In the model's type, however others are held: they are small, and a product with the
        # transpose has no groups along its sums.
        both = weights.load("kv_b_proj.weight", shape, (own,)).view(-1, of_head, sizes.kv_lora_rank)
        self._from_query = HeadLinear(both[:, : sizes.qk_nope_head_dim].transpose(1, 2))
        self._to_value = HeadLinear(both[:, sizes.qk_nope_head_dim :])
        self._rotary = rotary
        self._attention = attention
        self._out = out

    def __call__(
        self, hidden: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return [tokens, hidden_size].

        Mutates: the layer's cache.

        Args:
            hidden: [tokens, hidden_size].
            positions: [tokens] int64.
            metadata: of the step.
        """
        sizes = self._sizes
        query, rows = self._projections(hidden)
        rows = rows.unsqueeze(1)
        rotary = self._rotary
        plain, rotated = query[..., : sizes.qk_nope_head_dim], query[..., sizes.qk_nope_head_dim :]
        ops.rotary_embedding(
            positions,
            rotated,
            rows[..., sizes.kv_lora_rank :],
            rotary.cos_sin_cache,
            rotary.is_neox,
        )
        num_tokens, num_heads, _ = query.shape
        absorbed = query.new_empty(num_tokens, num_heads, sizes.row)
        self._from_query(plain, absorbed[..., : sizes.kv_lora_rank])
        absorbed[..., sizes.kv_lora_rank :] = rotated
        latents = self._attention(absorbed, rows, None, metadata)
        latents = latents.view(num_tokens, num_heads, sizes.kv_lora_rank)
        values = query.new_empty(num_tokens, num_heads, sizes.v_head_dim)
        return self._out(self._to_value(latents, values).view(num_tokens, -1))
