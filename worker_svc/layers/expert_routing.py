"""Which experts each token goes to, and what their outputs are multiplied by.

Of equal scores that of the lower index counts as the larger; docs/numerics.md has every rounding.

Sources: Shazeer et al., 2017, "Outrageously Large Neural Networks", section 2; groups: DeepSeek-V2,
2024, section 2.2.1; sigmoids and the bias of the choice: DeepSeek-V3, 2024, section 2.1.2.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from quire.contract.errors import ModelLoadError
from worker_svc import ops

Scores = Literal["softmax", "sigmoid"]

# Added to the sum that weights are divided by.
_LEAST_SUM = 1e-20


@dataclass(frozen=True, slots=True)
class ExpertRouting:
    """How the logits of a router become a choice.

    Attributes:
        num_experts: in each layer.
        top_k: experts of a token.
        normalizes: whether the picked experts' weights are divided by their sum.
        scores: of the experts, by the logits.
        scale: factor of the weights, at last.
        num_groups: of equal size, that experts lie in.
        topk_group: groups from which experts are picked: those of the largest scores.
        num_of_group: largest scores of a group's experts whose sum the group's is; 1 or 2.

    Raises:
        ModelLoadError: the numbers do not fit together.
    """

    num_experts: int
    top_k: int
    normalizes: bool
    scores: Scores = "softmax"
    scale: float = 1.0
    num_groups: int = 1
    topk_group: int = 1
    num_of_group: int = 1

    def __post_init__(self) -> None:
        if self.num_experts % self.num_groups != 0:
            raise ModelLoadError(
                f"n_group: must divide the {self.num_experts} experts, got {self.num_groups}"
            )
        if self.topk_group > self.num_groups:
            raise ModelLoadError(
                f"topk_group: must be at most n_group ({self.num_groups}), got {self.topk_group}"
            )
        group_size = self.num_experts // self.num_groups
        if self.num_groups > 1 and self.num_of_group > group_size:
            raise ModelLoadError(
                f"n_group: must leave groups of at least {self.num_of_group} experts, "
                f"got {self.num_groups} groups of {self.num_experts}"
            )
        kept = self.topk_group * group_size
        if self.top_k > kept:
            raise ModelLoadError(
                f"num_experts_per_tok: must be at most the {kept} experts that it is picked from, "
                f"got {self.top_k}"
            )

    def pick(
        self, logits: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights [rows, top_k] float32 and the experts [rows, top_k] int64.

        Args:
            logits: [rows, num_experts] of the router.
            bias: [num_experts] float32, added to the scores for the choice alone; None for none.
        """
        # Rounded from float64, so that it matters little how a library computes exponentials.
        wide = logits.double()
        scores = (wide.sigmoid() if self.scores == "sigmoid" else wide.softmax(dim=-1)).float()
        choice = scores if bias is None else scores + bias
        if self.num_groups > 1:
            choice = self._of_kept_groups(choice)
        experts = _largest(choice, self.top_k)[1]
        weights = scores.gather(1, experts)
        if self.normalizes:
            weights = weights / (_sum_in_order(weights) + _LEAST_SUM)
        return weights * self.scale, experts

    def route_on_device(
        self,
        weights: torch.Tensor,
        experts: torch.Tensor,
        logits: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        """Do the same on a GPU, and put the experts of a row in order.

        Mutates: weights, experts.

        Args:
            weights: [rows, top_k] float32.
            experts: [rows, top_k] int32.
            logits: see `pick`.
            bias: see `pick`.
        """
        ops.route_experts(
            weights,
            experts,
            logits,
            bias=bias,
            is_sigmoid=self.scores == "sigmoid",
            normalizes=self.normalizes,
            scale=self.scale,
            num_groups=self.num_groups,
            num_kept_groups=self.topk_group,
            num_of_group=self.num_of_group,
        )

    def _of_kept_groups(self, choice: torch.Tensor) -> torch.Tensor:
        """Return scores [rows, num_experts] with minus infinity for experts of other groups."""
        grouped = choice.view(len(choice), self.num_groups, -1)
        of_groups = _sum_in_order(_largest(grouped, self.num_of_group)[0]).squeeze(-1)
        kept = _largest(of_groups, self.topk_group)[1]
        is_left_out = torch.ones_like(of_groups, dtype=torch.bool).scatter_(1, kept, False)
        return grouped.masked_fill(is_left_out.unsqueeze(-1), -torch.inf).view_as(choice)


def _largest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest of the last dimension and their indices, of equals the lower one first."""
    values, indices = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], indices[..., :count]


def _sum_in_order(values: torch.Tensor) -> torch.Tensor:
    """Return sums [..., 1] over the last dimension, from the first to the last."""
    first, *others = values.unbind(dim=-1)
    for each in others:
        first = first + each
    return first.unsqueeze(-1)
