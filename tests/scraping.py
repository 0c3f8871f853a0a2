"""Reading an admin port."""

import urllib.error
import urllib.request

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


def get(address: str, path: str) -> tuple[int, str]:
    """Status and body of a page of an admin port."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Scrape:
    """A page of metrics, to be asked for values by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: list[Metric] = list(text_string_to_metric_families(text))
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    @property
    def names(self) -> list[str]:
        """The families' names as queries write them; parallel to `families`."""
        return [
            f"{family.name}_total" if family.type == "counter" else family.name
            for family in self.families
        ]

    def __call__(self, name: str, **labels: str) -> float:
        """The value of a series."""
        return self._values[name, frozenset(labels.items())]
