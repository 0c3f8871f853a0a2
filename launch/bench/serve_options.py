"""Options of `quire bench serve`. Names and meanings are those of `vllm bench serve`."""

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from launch.bench.dataset_options import COUNTS, DatasetName, DatasetOptions
from quire.contract.addresses import check_host, check_url
from quire.contract.errors import ConfigError
from quire.contract.options import Bounds, option, same_option
from quire.contract.service_options import PORTS, ServiceOptions

RATES = Bounds(0, math.inf, excludes_low=True)
METRICS = ("ttft", "tpot", "itl", "e2el")
# A bound on the latency of a token would be one on many values; of a request there is one each.
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


class BackendName(StrEnum):
    """What API a server speaks."""

    OPENAI = "openai"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    VLLM = "vllm"
    QUIRE = "quire"


@dataclass(frozen=True, kw_only=True)
class ServeOptions(DatasetOptions):
    """What `quire bench serve` is asked for.

    Raises:
        ConfigError: a value is out of bounds, or does not go with another.
    """

    backend: str = option(
        BackendName.OPENAI,
        "API of the server: OpenAI's completions ('openai', also 'vllm'), chat or responses, or "
        "Quire's gRPC.",
        choices=BackendName,
    )
    base_url: str | None = option(
        None,
        "The server, such as https://HOST:PORT; with backend quire HOST:PORT.",
        metavar="URL",
        shown_default="of --host and --port",
    )
    host: str = option("127.0.0.1", "Host of the server.")
    port: int | None = option(
        None, "Port of the server.", bounds=PORTS, shown_default="8000; 50051 with backend quire"
    )
    endpoint: str | None = option(
        None, "Path of the API.", metavar="PATH", shown_default="that of the backend"
    )
    model: str | None = option(
        None,
        "Model to ask for, and to take the tokenizer of.",
        shown_default="the first that the server lists",
    )
    served_model_name: str | None = option(
        None, "Name of the model in requests, if it is another.", shown_default="that of --model"
    )
    prompts_as_text: bool = option(
        False, "Send texts also to an API that takes token ids, for a server that does not."
    )
    request_rate: float = option(
        math.inf, "Requests a second; inf sends all of them at once.", bounds=RATES
    )
    burstiness: float = option(
        1.0,
        "Shape of the gamma distribution of the times between them: 1 is a Poisson process, less "
        "comes in bursts, more is more even, and inf quite even.",
        bounds=RATES,
    )
    ramp_up_strategy: str | None = option(
        None,
        "Let the rate grow from --ramp-up-start-rps to --ramp-up-end-rps.",
        choices=("linear", "exponential"),
        shown_default="a constant rate",
    )
    ramp_up_start_rps: float | None = option(
        None, "Requests a second at first.", bounds=RATES, shown_default="none"
    )
    ramp_up_end_rps: float | None = option(
        None, "Requests a second at last.", bounds=RATES, shown_default="none"
    )
    max_concurrency: int | None = option(
        None,
        "Most requests under way; others wait here, and are late.",
        bounds=COUNTS,
        shown_default="no limit",
    )
    num_warmups: int = option(
        0, "Requests before the measurement, all with the first prompt.", bounds=Bounds(0, 100_000)
    )
    ready_check_timeout_sec: float = option(
        0.0,
        "How long to wait for a first answer before the measurement; 0 does not try.",
        unit="seconds",
        bounds=Bounds(0, 86_400),
    )
    ignore_eos: bool = option(
        False, "Go on past the end of text, so that answers have their length; always with random."
    )
    temperature: float | None = option(
        None, "0 takes the likeliest token.", bounds=Bounds(0, 1000), shown_default="the server's"
    )
    top_p: float | None = option(
        None,
        "Keep this share of probability.",
        bounds=Bounds(0, 1, excludes_low=True),
        shown_default="the server's",
    )
    top_k: int | None = option(
        None,
        "Keep the k likeliest tokens.",
        bounds=Bounds(-1, 2**31 - 1),
        shown_default="the server's",
    )
    min_p: float | None = option(
        None,
        "Drop tokens this much less likely.",
        bounds=Bounds(0, 1),
        shown_default="the server's",
    )
    extra_body: str | None = option(
        None,
        "More fields of each request, as a JSON object; they go before all others, and null leaves "
        "one out.",
        metavar="JSON",
        shown_default="none",
    )
    header: tuple[str, ...] = option((), "Header of each request; repeat.", metavar="NAME=VALUE")
    tls_dir: str | None = same_option(
        ServiceOptions,
        "tls_dir",
        help="Speak TLS, with a client's certificates of this directory.",
    )
    insecure: bool = option(
        False,
        "Do not check a server's certificate; with backend quire, let the key go in the clear.",
    )
    percentile_metrics: str = option(
        "ttft,tpot,itl", f"What to report on, of {','.join(METRICS)}.", metavar="METRIC,..."
    )
    metric_percentiles: str = option("99", "Which percentiles.", metavar="P,...")
    goodput: tuple[str, ...] = option(
        (),
        f"Count as good what takes at most so many milliseconds, of {', '.join(GOODPUT_METRICS)}; "
        "repeat.",
        metavar="METRIC:MS",
    )
    save_result: bool = option(False, "Write what was measured to a file.")
    save_detailed: bool = option(False, "Write what was measured of each request, too.")
    append_result: bool = option(False, "Write it to the end of the file, as a line of its own.")
    result_dir: Path | None = option(
        None, "Directory of the file; made if need be.", metavar="DIR", shown_default="this one"
    )
    result_filename: str | None = option(
        None,
        "Name of the file.",
        metavar="FILE",
        shown_default="LABEL-RATEqps-concurrencyN-MODEL-DATE.json",
    )
    metadata: tuple[str, ...] = option((), "Note this in the file; repeat.", metavar="NAME=VALUE")
    label: str | None = option(
        None, "Name of the run in the file.", shown_default="name of the backend"
    )
    disable_tqdm: bool = option(False, "Show no progress bar.")
    plot: Path | None = option(
        None,
        "Draw latencies, throughput and concurrency here: .svg, .png or .pdf.",
        metavar="FILE",
        shown_default="none",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ramp = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if (self.ramp_up_strategy is None) != (ramp == (None, None)) or (
            self.ramp_up_strategy is not None and None in ramp
        ):
            raise ConfigError(
                "ramp_up_strategy: must be given with ramp_up_start_rps and ramp_up_end_rps, "
                f"got {self.ramp_up_strategy or 'none'} with {ramp[0]} and {ramp[1]}"
            )
        if self.ramp_up_strategy is not None and self.request_rate != math.inf:
            raise ConfigError(
                f"request_rate: must not be given with ramp_up_strategy, got {self.request_rate}"
            )
        if self.backend != BackendName.QUIRE and self.base_url is not None:
            check_url("base_url", self.base_url)
        check_host("host", self.host)
        # Each is read once here, so that a mistake is reported before anything is sent.
        _ = self.metrics, self.percentiles, self.good, self.more_fields
        _ = self.headers, self.notes

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the latencies to report on."""
        names = tuple(name.strip() for name in self.percentile_metrics.split(","))
        for name in names:
            if name not in METRICS:
                raise ConfigError(
                    f"percentile_metrics: must be of {', '.join(METRICS)}, got {name!r}"
                )
        return names

    @property
    def percentiles(self) -> tuple[float, ...]:
        """Percentiles to report, each in [0, 100]."""
        found = []
        for text in self.metric_percentiles.split(","):
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not 0 <= value <= 100:
                raise ConfigError(f"metric_percentiles: must be in [0, 100], got {text!r}")
            found.append(value)
        return tuple(found)

    @property
    def good(self) -> dict[str, float]:
        """Most milliseconds of a good answer, by metric."""
        found = {}
        for text in _split(self.goodput):
            name, _, limit = text.partition(":")
            try:
                found[name] = float(limit)
            except ValueError:
                found[name] = math.nan
            if name not in GOODPUT_METRICS or not found[name] >= 0:
                raise ConfigError(
                    f"goodput: must be METRIC:MS with a metric of {', '.join(GOODPUT_METRICS)}, "
                    f"got {text!r}"
                )
        return found

    @property
    def more_fields(self) -> dict[str, Any]:
        """What `extra_body` adds to each request."""
        try:
            found = json.loads(self.extra_body or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConfigError(f"extra_body: must be a JSON object, got {self.extra_body}")
        return found

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each request."""
        return _pairs("header", self.header)

    @property
    def notes(self) -> dict[str, str]:
        """What `metadata` adds to the result."""
        return _pairs("metadata", _split(self.metadata))

    @property
    def ignores_eos(self) -> bool:
        """Whether answers go on past an end of text."""
        return self.ignore_eos or self.dataset_name == DatasetName.RANDOM

    @property
    def sampling(self) -> dict[str, float]:
        """Sampling parameters that were given, by name."""
        names = ("temperature", "top_p", "top_k", "min_p")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _split(values: tuple[str, ...]) -> list[str]:
    """Return values of an option that may be given once for each, or with spaces between them."""
    return [each for value in values for each in value.split()]


def _pairs(field: str, texts: tuple[str, ...] | list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise ConfigError(f"{field}: must be NAME=VALUE, got {text!r}")
        found[name.strip()] = value.strip()
    return found
