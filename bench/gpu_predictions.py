"""What a run on a GPU is expected to give, beside what it gave.

Shares are of the bandwidth of a copy on the same device, so that they hold for every card; rates
are of cards with an H100's multiprocessors. They were predicted by bytes and instructions
(docs/gpu.md); where an H100 or H200 gave something else, it is that, with room for noise. Those
that are called modelled nothing has tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

Figures = dict[str, Any]
# Of 132 multiprocessors.
HOPPER = ("H100 80GB HBM3", "H200")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A figure that was predicted.

    Attributes:
        step: of gpu-check, whose figures have it.
        name: what is shown.
        find: returns what was measured; raises LookupError if that has no such figure.
        low: at least that was predicted.
        high: and at most that.
        devices: parts of the names of those that it is predicted for; none for all.
    """

    step: str
    name: str
    find: Callable[[Figures], float]
    low: float
    high: float
    devices: tuple[str, ...] = ()


def _first(cases: list[Figures], **wanted: object) -> Figures:
    for case in cases:
        if all(case[name] == value for name, value in wanted.items()):
            return case
    raise LookupError(f"no case of {wanted}")


def _attention(case: str, group: int) -> Callable[[Figures], float]:
    return lambda found: float(
        _first(found["cases"], case=case, group=group)["share_of_copy"]["ours"]
    )


def _linear(rows: int) -> Callable[[Figures], float]:
    return lambda found: float(
        _first(found["linear"], in_features=4096, out_features=28672, rows=rows)["share_of_copy"]
    )


def _prompt(rows: int, length: int) -> Callable[[Figures], float]:
    return lambda found: float(_first(found["prompts"], rows=rows, length=length)["tflops"]["ours"])


def _roof(streams: int) -> Callable[[Figures], float]:
    return lambda found: float(_first(found["default"], streams=streams)["roof"])


def _over_grpc(streams: int) -> Callable[[Figures], float]:
    def share(found: Figures) -> float:
        cluster = _first(found["cluster"], streams=streams)["tokens_per_s"]
        return float(cluster / _first(found["default"], streams=streams)["tokens_per_s"])

    return share


def _replayed(model: str, rows: int) -> Callable[[Figures], float]:
    def share(found: Figures) -> float:
        step = _first(found["mixed"], model=model, rows=rows)
        return float(step["graph_ms"] / step["kernels_ms"])

    return share


def _kind(kind: str, figure: str, /, **wanted: object) -> Callable[[Figures], float]:
    return lambda found: float(_first(found[kind], **wanted)[figure])


def _shared_to_apart(found: Figures) -> float:
    shared, apart = (_kind("shared", "us", seqs=64, kind=kind) for kind in ("shared", "apart"))
    return shared(found) / apart(found)


KERNELS, ENGINE, MIXED, KINDS = "bench", "bench-gpu", "bench-mixed", "bench-kinds"
SUMS = "bench-sums"
# Microseconds of a sum over two that brings no bytes, from and to: of one kernel two are the fence
# of the system and the flag's way.
SUM_US = {"peer memory": (3.0, 4.0), "nccl": (8.0, 12.0)}
# Bytes in a microsecond that NVLink brings each way, at most and at least.
LINK_RATES = (450e3, 225e3)
# Of csrc/cuda/peers, for each of two ranks.
MOST_BYTES_OF_PEER = 512 << 10


def sum_model(library: str, num_bytes: int) -> tuple[float, float] | None:
    """Return from and to what a sum over two GPUs with NVLink should take, in microseconds.

    That is a model, which no machine with two GPUs has tested yet: each sends its summand once.

    Args:
        library: of SUM_US.
        num_bytes: of a summand.

    Returns:
        None where the library does not take so many bytes.
    """
    if library == "peer memory" and num_bytes > MOST_BYTES_OF_PEER:
        return None
    low, high = (
        us + num_bytes / rate for us, rate in zip(SUM_US[library], LINK_RATES, strict=True)
    )
    return round(low, 1), round(high, 1)


def _sums() -> Iterator[Prediction]:
    """Yield what sums of decode steps in bfloat16 should take."""
    for library, features, rows in product(SUM_US, (4096, 8192), (1, 8, 16, 32, 64)):
        modelled = sum_model(library, 2 * rows * features)
        if modelled is not None:
            case = {"library": library, "dtype": "bfloat16", "features": features, "rows": rows}
            yield Prediction(
                SUMS,
                f"sum of {rows} x {features} over two, {library}, us, modelled",
                _kind("sums", "us", **case),
                *modelled,
                HOPPER,
            )


PREDICTIONS = (
    Prediction(
        KERNELS, "decode attention, 64 x 4k, G=4, of a copy", _attention("64 x 4k", 4), 0.85, 1.05
    ),
    Prediction(
        KERNELS, "decode attention, 1 x 128k, G=4, of a copy", _attention("1 x 128k", 4), 0.75, 1.05
    ),
    Prediction(
        KERNELS,
        "decode attention, 1 x 128k + 63 x 1k, G=4, of a copy",
        _attention("1 x 128k + 63 x 1k", 4),
        0.75,
        1.05,
    ),
    Prediction(KERNELS, "layer 4096 x 28672, 1 row, of a copy", _linear(1), 0.8, 1.05),
    Prediction(KERNELS, "layer 4096 x 28672, 64 rows, of a copy", _linear(64), 0.75, 0.95, HOPPER),
    Prediction(KERNELS, "prompt of 8k, TFLOP/s", _prompt(8192, 8192), 210, 260, HOPPER),
    Prediction(KERNELS, "chunk of 2k behind 32k, TFLOP/s", _prompt(2048, 34816), 240, 300, HOPPER),
    Prediction(
        KINDS,
        "latent decode, 64 x 4k, 16 heads, of a copy",
        _kind("latent", "share_of_copy", heads=16, rows=1),
        0.74,
        0.9,
    ),
    Prediction(
        KINDS,
        "latent decode, 64 x 4k, 128 heads, us",
        _kind("latent", "us", heads=128, rows=1),
        380,
        560,
        HOPPER,
    ),
    Prediction(
        KINDS,
        "latent prompt of 2k, 16 heads, TFLOP/s",
        _kind("latent", "tflops", heads=16, rows=2048),
        130,
        190,
        HOPPER,
    ),
    Prediction(
        KINDS, "64 behind 2k with 256 of their own, shared to apart", _shared_to_apart, 0.55, 0.75
    ),
    # Its instructions, not its bytes: on an H200 it takes as long as on an H100.
    Prediction(
        KINDS,
        "layer of 4 bits, 1 row, us",
        _kind("weight_only", "us", kind="int4", rows=1),
        40,
        56,
        HOPPER,
    ),
    Prediction(ENGINE, "decode step, 1 stream, of the roof", _roof(1), 0.65, 0.78, HOPPER),
    Prediction(ENGINE, "decode step, 64 streams, of the roof", _roof(64), 0.60, 0.75, HOPPER),
    # A router takes 70 to 90 us of its core for a token: less for 64 than the step takes.
    Prediction(ENGINE, "64 streams over gRPC, of one process", _over_grpc(64), 0.85, 1.02),
    # Of a small model the host takes longer to start a step's kernels than a GPU to run them.
    Prediction(
        MIXED, "mixed step, 0.6B, 64 rows, graph to kernels", _replayed("0.6B", 64), 0.2, 0.7
    ),
    Prediction(MIXED, "mixed step, 8B, 64 rows, graph to kernels", _replayed("8B", 64), 0.7, 1.05),
    *_sums(),
)


def compared(step: str, device: str, figures: Figures) -> Iterator[Figures]:
    """Yield each prediction of a step beside what was measured.

    Args:
        step: of gpu-check.
        device: its name.
        figures: of the step's benchmark.
    """
    for each in PREDICTIONS:
        is_meant = not each.devices or any(name in device for name in each.devices)
        if each.step != step or not is_meant:
            continue
        try:
            measured = each.find(figures)
        except LookupError:
            continue  # the run was cut short
        yield {
            "name": each.name,
            "measured": round(measured, 3),
            "predicted": [each.low, each.high],
            "as_predicted": each.low <= measured <= each.high,
        }
