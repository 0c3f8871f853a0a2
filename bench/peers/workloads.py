"""What the engines are asked for: prompts, lengths and times of arrival, from seeds alone."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

# Special tokens and single bytes of the models' tokenizer come before.
_WORDS = range(300, 32000)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and its greedy answer.

    Attributes:
        prompt: token ids.
        max_tokens: tokens of the answer; no token ends it sooner.
        arrival_s: when it is sent, in seconds from the start of the run.
    """

    prompt: list[int]
    max_tokens: int
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast requests of a workload with arrivals come, and what a good answer is.

    Attributes:
        requests_per_s: mean rate.
        ttft_s: a good answer's first token comes within.
        tpot_s: a good answer's later tokens come at least so often.
    """

    requests_per_s: float
    ttft_s: float
    tpot_s: float


PACES = {"125M": Pace(2.0, 1.0, 0.1), "1.1B": Pace(0.15, 8.0, 0.5)}


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of a kind.

    Attributes:
        name: of the workload.
        title: what it is, in a few words.
        requests: makes them of a seed and a pace; `quick` makes fewer.
        arrives: whether requests come one after the other.
    """

    name: str
    title: str
    requests: Callable[[int, Pace, bool], list[Request]]
    arrives: bool = False


def _prompt(rng: random.Random, length: int) -> list[int]:
    return rng.choices(_WORDS, k=length)


def _lognormal(rng: random.Random, mean: float, sigma: float, largest: int) -> int:
    """Draw a length of at least 8 and at most `largest`; `mean` is that of the distribution."""
    drawn = rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
    return round(min(max(drawn, 8), largest))


def _mixed(seed: int, number: int) -> list[Request]:
    """Return requests of lengths as in conversations, the same lengths for every seed."""
    lengths, rng = random.Random(1), random.Random(seed)
    return [
        Request(
            _prompt(rng, _lognormal(lengths, 160, 1.0, 1024)), _lognormal(lengths, 128, 0.8, 512)
        )
        for _ in range(number)
    ]


def single(seed: int, pace: Pace, quick: bool) -> list[Request]:
    """One request alone."""
    return [Request(_prompt(random.Random(seed), 128), 32 if quick else 128)]


def mix(seed: int, pace: Pace, quick: bool) -> list[Request]:
    """64 requests at once."""
    return _mixed(seed, 16 if quick else 64)


def prefix(seed: int, pace: Pace, quick: bool) -> list[Request]:
    """32 requests at once that share the first 512 tokens of 544."""
    rng = random.Random(seed)
    shared = _prompt(rng, 512)
    number, tokens = (8, 16) if quick else (32, 64)
    return [Request(shared + _prompt(rng, 32), tokens) for _ in range(number)]


def poisson(seed: int, pace: Pace, quick: bool) -> list[Request]:
    """64 requests of mixed lengths that arrive at random, at the same times for every seed."""
    arrivals, now, requests = random.Random(2), 0.0, []
    for request in _mixed(seed, 8 if quick else 64):
        requests.append(Request(request.prompt, request.max_tokens, now))
        now += arrivals.expovariate(pace.requests_per_s)
    return requests


def long_context(seed: int, pace: Pace, quick: bool) -> list[Request]:
    """One prompt of 7,936 tokens."""
    return [Request(_prompt(random.Random(seed), 2048 if quick else 7936), 16 if quick else 128)]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("single", "one request, 128 tokens in, 128 out", single),
        Workload("mix", "64 requests at once, lengths as in conversations", mix),
        Workload("prefix", "32 requests at once, 512 of 544 tokens shared, 64 out", prefix),
        Workload("poisson", "64 requests that arrive at random", poisson, arrives=True),
        Workload("long", "one request, 7,936 tokens in, 128 out", long_context),
    )
}

WARM_UP_SEED = 0


def warm_up() -> list[Request]:
    """Return requests that an engine answers before it is measured."""
    rng = random.Random(WARM_UP_SEED)
    return [Request(_prompt(rng, 64 + 16 * index), 8) for index in range(8)]
