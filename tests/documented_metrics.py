"""What services export according to docs/observability.md."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "observability.md"
ROW = re.compile(r"^\| `(\w+)` \| (gauge|counter|histogram) \|([^|]*)\| (.+) \|$", re.MULTILINE)
ALIAS = re.compile(r"^\| `(vllm:\w+)` \| (router|scheduler) \| (.+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class DocumentedMetric:
    """A row of a table."""

    name: str
    kind: str
    labels: frozenset[str]


def documented_metrics() -> dict[str, DocumentedMetric]:
    """Every metric of the tables, by name."""
    return {
        name: DocumentedMetric(name, kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in ROW.findall(PAGE.read_text())
    }


def documented_aliases() -> dict[str, str]:
    """The service that has each of vLLM's names."""
    return {name: service for name, service, _ in ALIAS.findall(PAGE.read_text())}


def series_names() -> set[str]:
    """Every name that a query may use."""
    names = set()
    for metric in documented_metrics().values():
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + suffix for suffix in suffixes}
    return names
