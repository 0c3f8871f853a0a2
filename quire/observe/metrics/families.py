"""Metric families from plain numbers, for collectors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from quire.observe.metrics.histogram import Histogram

# The values of a series' labels.
LabelValues = TypeVar("LabelValues", bound=tuple[str, ...])


def gauge(
    name: str,
    documentation: str,
    value: float | Mapping[LabelValues, float],
    labels: Sequence[str] = (),
) -> Metric:
    """Return a gauge: one number, or one for each tuple of values of `labels`."""
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for label_values, number in _series(value):
        family.add_metric(label_values, number)
    return family


def counter(
    name: str,
    documentation: str,
    value: float | Mapping[LabelValues, float],
    labels: Sequence[str] = (),
) -> Metric:
    """Return a counter, as `gauge` does.

    Args:
        name: with "_total" at its end.
        documentation: one line.
        value: one number, or one for each tuple of values of `labels`.
        labels: their names.
    """
    family = CounterMetricFamily(name, documentation, labels=labels)
    for label_values, number in _series(value):
        family.add_metric(label_values, number)
    return family


def histogram(
    name: str,
    documentation: str,
    value: Histogram | Mapping[LabelValues, Histogram],
    labels: Sequence[str] = (),
) -> Metric:
    """Return a histogram, as `gauge` does."""
    family = HistogramMetricFamily(name, documentation, labels=labels)
    series: Iterable[tuple[tuple[str, ...], Histogram]]
    series = [((), value)] if isinstance(value, Histogram) else value.items()
    for label_values, each in series:
        buckets, so_far = [], 0
        for bound, count in zip((*each.bounds, float("inf")), each.counts, strict=True):
            so_far += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(so_far)))
        family.add_metric(label_values, buckets, each.total)
    return family


def _series(
    value: float | Mapping[LabelValues, float],
) -> Iterable[tuple[tuple[str, ...], float]]:
    return value.items() if isinstance(value, Mapping) else [((), value)]
