"""Linear layers cut over the ranks of a tensor-parallel group, as in Megatron-LM.

A column-parallel layer owns some output features, a row-parallel one some input features, so that
the pair needs one exchange. Source: Shoeybi et al., 2019, "Megatron-LM", section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from quire.contract.errors import ModelLoadError
from worker_svc.layers.device_linear import make_linear
from worker_svc.layers.grouped_linear import GroupedWeight
from worker_svc.layers.partial_sums import PartialSums, add_up
from worker_svc.layers.quantization import are_stored_integers_kept
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

HEAD_DIM_STEP = 8
MAX_HEAD_DIM = 256
# Of heads whose values are the first elements of their keys.
MAX_LATENT_HEAD_DIM = 576


@dataclass(frozen=True, slots=True)
class HeadShare:
    """The attention heads of a layer and those of this rank.

    With fewer key/value heads than ranks, several ranks hold a copy of the same one.

    Attributes:
        total_heads: query heads of the layer.
        total_kv_heads: key/value heads of the layer.
        head_dim: features of a head.
        parallel: the group.
        value_size: features of a value where values are the first of their keys, as in latent
            attention; None for values of their own, as large as keys.

    Raises:
        ModelLoadError: sizes the kernels do not serve.
    """

    total_heads: int
    total_kv_heads: int
    head_dim: int
    parallel: ParallelGroup
    value_size: int | None = None

    def __post_init__(self) -> None:
        most = MAX_HEAD_DIM if self.value_size is None else MAX_LATENT_HEAD_DIM
        for size in (self.head_dim, self.value_size or self.head_dim):
            if size % HEAD_DIM_STEP != 0 or not 0 < size <= most:
                raise ModelLoadError(
                    f"head_dim: must be a multiple of {HEAD_DIM_STEP} up to {most}, got {size}"
                )
        if self.total_heads % self.total_kv_heads != 0:
            raise ModelLoadError(
                f"num_attention_heads: must be a multiple of num_key_value_heads "
                f"({self.total_kv_heads}), got {self.total_heads}"
            )

    @property
    def heads(self) -> range:
        """Query heads of this rank."""
        return self.parallel.part("num_attention_heads", self.total_heads)

    @property
    def kv_heads(self) -> range:
        """Key/value heads of this rank."""
        size = self.parallel.size
        if self.total_kv_heads < size and size % self.total_kv_heads == 0:
            first = self.parallel.rank * self.total_kv_heads // size
            return range(first, first + 1)
        return self.parallel.part("num_key_value_heads", self.total_kv_heads)

    @property
    def num_kv_heads(self) -> int:
        """Number of key/value heads of this rank."""
        return len(self.kv_heads)


@dataclass(frozen=True, slots=True)
class LinearSource:
    """Rows of a weight matrix in the checkpoint.

    Attributes:
        name: of the layer in the checkpoint, e.g. "q_proj".
        total_rows: output features of the stored layer.
        rows: those to take.
    """

    name: str
    total_rows: int
    rows: range


def _load(
    weights: Weights, source: LinearSource, in_features: int, columns: range, transposed: bool
) -> torch.Tensor:
    """Return [rows, columns] of a stored weight; `transposed` ones are stored [in, out]."""
    name = f"{source.name}.weight"
    if transposed:
        stored = weights.load(name, (in_features, source.total_rows), (columns, source.rows))
        return stored.t().contiguous()
    return weights.load(name, (source.total_rows, in_features), (source.rows, columns))


def _load_shared(
    weights: Weights,
    sources: Sequence[LinearSource],
    in_features: int,
    columns: range,
    transposed: bool,
) -> torch.Tensor | GroupedWeight:
    """Return [rows of all sources, columns]; as integers, if that is asked for and all are so."""
    if are_stored_integers_kept() and not transposed:
        integers = weights.load_grouped(
            [
                (f"{each.name}.weight", (each.total_rows, in_features), (each.rows, columns))
                for each in sources
            ]
        )
        if integers is not None:
            return integers
    return torch.cat(
        [_load(weights, source, in_features, columns, transposed) for source in sources]
    )


class MergedColumnParallelLinear:
    """Several column-parallel layers with the same input, computed as one.

    Args:
        weights: scope of the layers.
        sources: what to stack, in order.
        in_features: of the common input.
        bias: whether the stored layers have one.
        transposed: whether the weights are stored as [in, out], as GPT-2's are.
    """

    def __init__(
        self,
        weights: Weights,
        sources: Sequence[LinearSource],
        in_features: int,
        *,
        bias: bool,
        transposed: bool = False,
    ) -> None:
        weight = _load_shared(weights, sources, in_features, range(in_features), transposed)
        merged_bias = None
        if bias:
            merged_bias = torch.cat(
                [
                    weights.load(f"{source.name}.bias", (source.total_rows,), (source.rows,))
                    for source in sources
                ]
            )
        # Some layers are stored as one: their rows count once.
        total_features = sum({source.name: source.total_rows for source in sources}.values())
        self._linear = make_linear(weight, merged_bias, total_features, is_shared=True)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [tokens, this rank's output features of every source, in order].

        Args:
            x: [tokens, in_features].
        """
        return self._linear(x)


class ColumnParallelLinear(MergedColumnParallelLinear):
    """One layer of which each rank owns an equal share of the output features.

    Args:
        weights: scope of the layer.
        name: of the layer in the checkpoint, e.g. "o_proj".
        in_features: of the input.
        out_features: over all ranks.
        parallel: the group.
        bias: whether it has one.
        transposed: whether the weight is stored as [in, out].

    Raises:
        ModelLoadError: a tensor is missing or misshapen, or the ranks cannot share the layer.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        in_features: int,
        out_features: int,
        parallel: ParallelGroup,
        *,
        bias: bool,
        transposed: bool = False,
    ) -> None:
        source = LinearSource(
            name, out_features, parallel.part(f"output features of {name}", out_features)
        )
        super().__init__(weights, (source,), in_features, bias=bias, transposed=transposed)


class QKVParallelLinear(MergedColumnParallelLinear):
    """Query, key and value projections of this rank's heads, computed as one.

    Args:
        weights: scope of the layers.
        hidden_size: of the input.
        heads: which heads.
        names: of three stored layers (query, key, value), or of one that holds all three.
        bias: whether they have one.
        transposed: whether the weights are stored as [in, out].
        grouped: whether the one layer holds, for each key/value head in turn, the query heads that
            read it, the key and the value; else all queries, all keys, all values.
    """

    def __init__(
        self,
        weights: Weights,
        hidden_size: int,
        heads: HeadShare,
        names: tuple[str] | tuple[str, str, str],
        *,
        bias: bool,
        transposed: bool = False,
        grouped: bool = False,
    ) -> None:
        self._head_dim = heads.head_dim
        self._head_counts = [len(heads.heads), len(heads.kv_heads), len(heads.kv_heads)]
        sources = _grouped_sources(names[0], heads) if grouped else _stacked_sources(names, heads)
        super().__init__(weights, sources, hidden_size, bias=bias, transposed=transposed)

    def split_heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query [tokens, heads, head_dim], key and value [tokens, kv_heads, head_dim].

        They are views of one buffer, with a token stride of all three together.

        Args:
            x: [tokens, hidden_size].
        """
        heads = self(x).view(x.shape[0], -1, self._head_dim)
        query, key, value = torch.split_with_sizes(heads, self._head_counts, dim=1)
        return query, key, value


def _stacked_sources(
    names: tuple[str] | tuple[str, str, str], heads: HeadShare
) -> list[LinearSource]:
    """Return this rank's rows of layers that hold whole queries, keys and values one by one."""
    sizes = [
        count * heads.head_dim
        for count in (heads.total_heads, heads.total_kv_heads, heads.total_kv_heads)
    ]
    shares = [heads.heads, heads.kv_heads, heads.kv_heads]
    sources = []
    first_row = 0
    for index, (size, share) in enumerate(zip(sizes, shares, strict=True)):
        start, stop = share.start * heads.head_dim, share.stop * heads.head_dim
        if len(names) == 1:
            rows = range(first_row + start, first_row + stop)
            sources.append(LinearSource(names[0], sum(sizes), rows))
        else:
            sources.append(LinearSource(names[index], size, range(start, stop)))
        first_row += size
    return sources


def _grouped_sources(name: str, heads: HeadShare) -> list[LinearSource]:
    """Return this rank's rows of a layer stored as [kv_heads, queries + key + value, head_dim]."""
    queries = heads.total_heads // heads.total_kv_heads
    group = queries + 2
    slots = [head // queries * group + head % queries for head in heads.heads]
    slots += [head * group + queries for head in heads.kv_heads]
    slots += [head * group + queries + 1 for head in heads.kv_heads]
    size = heads.head_dim
    total_rows = heads.total_kv_heads * group * size
    return [LinearSource(name, total_rows, range(slot * size, (slot + 1) * size)) for slot in slots]


class RowParallelLinear:
    """One layer of which each rank owns an equal share of the input features.

    The bias is added once, to the whole sum.

    Args:
        weights: scope of the layer.
        name: of the layer in the checkpoint, e.g. "o_proj".
        in_features: over all ranks.
        out_features: of the result.
        parallel: the group.
        bias: whether it has one.
        transposed: whether the weight is stored as [in, out].

    Raises:
        ModelLoadError: a tensor is missing or misshapen, or the ranks cannot share the layer.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        in_features: int,
        out_features: int,
        parallel: ParallelGroup,
        *,
        bias: bool,
        transposed: bool = False,
    ) -> None:
        source = LinearSource(name, out_features, range(out_features))
        columns = parallel.part(f"input features of {name}", in_features)
        weight = _load_shared(weights, (source,), in_features, columns, transposed)
        own_bias = weights.load(f"{name}.bias", (out_features,)) if bias else None
        self._parallel = parallel
        self._partial_sums = PartialSums(name, weight, parallel, own_bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [tokens, out_features], whole on every rank.

        Args:
            x: [tokens, this rank's input features].
        """
        sums = self._partial_sums(x)
        return add_up(sums, self._parallel, x.dtype, self._partial_sums.late_bias)


class ReplicatedLinear:
    """One layer that every rank computes in full.

    Args:
        weights: scope of the layer.
        name: of the layer in the checkpoint, e.g. "o_proj".
        in_features: of the input.
        out_features: of the result.
        bias: whether it has one.
        dtype: of the result, float32 or that of the input; None for that of the input.

    Raises:
        ModelLoadError: a tensor is missing or misshapen.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._linear = make_linear(
            weights.load(f"{name}.weight", (out_features, in_features)),
            weights.load(f"{name}.bias", (out_features,)) if bias else None,
            dtype=dtype,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [tokens, out_features].

        Args:
            x: [tokens, in_features].
        """
        return self._linear(x)
