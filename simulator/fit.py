"""From measured steps to a cost model: least squares with prices that cannot be negative."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from simulator.cost_model import CostModel, StepShape

FloatArray = npt.NDArray[np.float64]
_PRICES = ("base_us", "token_us", "sequence_us", "context_us", "pair_us")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of a real worker.

    Attributes:
        shape: what it computed.
        step_us: how long it took.
    """

    shape: StepShape
    step_us: float


@dataclass(frozen=True, slots=True)
class FitError:
    """Errors of a model on measured steps, relative to their times.

    Attributes:
        median: of the absolute errors.
        p90: 90th percentile of the absolute errors.
        bias: the mean error; positive where the model is too slow.
    """

    median: float
    p90: float
    bias: float


def fit(name: str, source: str, steps: Sequence[MeasuredStep]) -> CostModel:
    """Return the prices that minimise the squares of the relative errors of `steps`.

    Relative, so that short steps of few sequences count as much as long ones.

    Args:
        name: of the model and the machine.
        source: how it was measured.
        steps: as many different shapes as there are prices, or more.
    """
    features = np.array([_features(each.shape) for each in steps], np.float64)
    taken = np.array([each.step_us for each in steps], np.float64)
    prices = _non_negative_least_squares(features / taken[:, None], np.ones(len(steps)))
    return CostModel(name, source, **dict(zip(_PRICES, map(float, prices), strict=True)))


def fit_error(model: CostModel, steps: Sequence[MeasuredStep]) -> FitError:
    """Return the errors of a model on steps, preferably other ones than it was fitted to."""
    errors = np.array([model.step_us(each.shape) / each.step_us - 1 for each in steps])
    return FitError(
        median=float(np.median(np.abs(errors))),
        p90=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(errors.mean()),
    )


def _features(shape: StepShape) -> tuple[int, ...]:
    return (
        1,
        shape.num_tokens,
        shape.num_sequences,
        shape.num_context_tokens,
        shape.num_attention_pairs,
    )


def _non_negative_least_squares(features: FloatArray, target: FloatArray) -> FloatArray:
    """Return the x >= 0 with the least |features x - target|.

    At the minimum some prices are 0 and the others those of plain least squares over the rest.
    There are 2^5 ways to choose which: all are tried.

    Args:
        features: [num_steps, num_prices].
        target: [num_steps].
    """
    num_prices = features.shape[1]
    # Scale the columns: else the column of pairs, in millions, drowns that of the constant.
    scale = np.maximum(np.abs(features).max(axis=0), 1e-30)
    scaled = features / scale
    best, least = np.zeros(num_prices), float(target @ target)
    for size in range(1, num_prices + 1):
        for chosen in combinations(range(num_prices), size):
            columns = list(chosen)
            found = np.linalg.lstsq(scaled[:, columns], target, rcond=None)[0]
            if (found < 0).any():
                continue
            residual = scaled[:, columns] @ found - target
            if residual @ residual < least:
                least = float(residual @ residual)
                best = np.zeros(num_prices)
                best[columns] = found
    return np.asarray(best / scale, np.float64)
