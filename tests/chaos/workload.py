"""What chaos asks for: requests of every sampling mode, and what came of each stream."""

import asyncio
import itertools
import time
from dataclasses import dataclass, field, replace

from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta, Finished, TokenLogprobs
from quire.sdk.collect import Collector

_STOPS = ("class", "return", "__init__")
_LONG = 320
MODES = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=_LONG, ignore_eos=True),
    "sampled": SamplingParams(seed=5, max_tokens=_LONG, ignore_eos=True),
    "filtered": SamplingParams(seed=6, top_k=40, top_p=0.9, min_p=0.01, max_tokens=160),
    "penalised": SamplingParams(
        temperature=0.7,
        seed=7,
        presence_penalty=0.8,
        frequency_penalty=0.6,
        repetition_penalty=1.3,
        max_tokens=160,
        ignore_eos=True,
    ),
    "reported": SamplingParams(
        temperature=0.9, seed=12, logprobs=3, prompt_logprobs=1, max_tokens=120, ignore_eos=True
    ),
    "steered": SamplingParams(
        seed=8, logit_bias={300: 4.0, 301: -100.0}, allowed_token_ids=range(200, 900), max_tokens=80
    ),
    "stopped": SamplingParams(seed=9, stop=_STOPS, max_tokens=_LONG),
    "at_least": SamplingParams(seed=10, stop=_STOPS, min_tokens=60, max_tokens=_LONG),
    "n": SamplingParams(n=4, seed=13, stop=_STOPS[:1], max_tokens=100, ignore_eos=True),
    "best_of": SamplingParams(n=2, best_of=4, seed=14, logprobs=1, max_tokens=60),
    "beam": SamplingParams(
        n=2, best_of=4, use_beam_search=True, temperature=0.0, logprobs=2, max_tokens=40
    ),
    "censored": SamplingParams(seed=15, bad_words=("the", "list"), max_tokens=80),
    "short": SamplingParams(seed=16, max_tokens=3),
}
# Their outputs come at the end: there is nothing between which a stall would show.
SILENT = frozenset(("best_of", "beam"))
PROMPTS = (
    "The list class",
    "Return a copy of the string with all",
    "A function definition " * 12,
    "The with statement is used to wrap " * 30,
)


@dataclass(frozen=True, slots=True)
class Job:
    """One request of the pool that all streams draw from."""

    mode: str
    prompt: int
    copy: int = 0

    @property
    def text(self) -> str:
        """Of its prompt, different in each copy."""
        return f"{self.copy} {PROMPTS[self.prompt]}" if self.copy else PROMPTS[self.prompt]

    @property
    def sampling_params(self) -> SamplingParams:
        """Of its mode, with a seed of its own."""
        params = MODES[self.mode]
        shift = 100 * self.prompt + 1000 * self.copy
        return params if params.seed is None else replace(params, seed=params.seed + shift)


JOBS = tuple(Job(mode, prompt) for mode in MODES for prompt in range(len(PROMPTS)))

# Tokens, text, log-probabilities, their sum, reason and stop string of each output; the prompt's.
Output = tuple[tuple[int, ...], str, tuple[TokenLogprobs, ...], float | None, str, str | None]
Answer = tuple[tuple[Output, ...], tuple[TokenLogprobs, ...]]


@dataclass(slots=True)
class Stream:
    """One stream, as its client saw it.

    Attributes:
        job: what was asked for.
        began_at: when it was sent, in seconds of the monotonic clock.
        token_times: when tokens came.
        answer: all of it; None unless it ended well.
        tokens: as they came, for each output.
        error: that ended it; empty if none did.
        ended_at: when it ended.
    """

    job: Job
    began_at: float = field(default_factory=time.monotonic)
    token_times: list[float] = field(default_factory=list)
    answer: Answer | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    error: str = ""
    ended_at: float = 0.0

    def gaps(self) -> list[tuple[float, float]]:
        """Return when each wait for a token began and ended, the first from the request on."""
        times = [self.began_at, *self.token_times]
        return list(itertools.pairwise(times))


async def follow(
    client: AsyncClient, job: Job, begun: asyncio.Event | None = None, num_tokens: int = 0
) -> Stream:
    """Send a job, read its stream to the end, and return what came; errors are kept in it.

    Args:
        client: that sends it.
        job: what to ask for.
        begun: set when more than `num_tokens` messages with tokens have come, or the stream ends.
        num_tokens: see there.
    """
    stream, collector = Stream(job), Collector()
    try:
        async for event in client.stream(job.text, job.sampling_params):
            collector.add(event)
            if isinstance(event, Delta) and event.token_ids:
                stream.token_times.append(time.monotonic())
                stream.tokens.setdefault(event.index, []).extend(event.token_ids)
                if begun is not None and len(stream.token_times) > num_tokens:
                    begun.set()
            if isinstance(event, Finished):
                stream.tokens.setdefault(event.index, [])
        completions = collector.completions()
    except Exception as error:
        # Whatever a user would have seen is what chaos counts.
        stream.error = f"{type(error).__name__}: {error}"
    else:
        stream.answer = (
            tuple(
                (
                    each.token_ids,
                    each.text,
                    each.logprobs,
                    each.cumulative_logprob,
                    str(each.finish_reason),
                    each.stop_str,
                )
                for each in completions
            ),
            completions[0].prompt_logprobs,
        )
    stream.ended_at = time.monotonic()
    if begun is not None:
        begun.set()
    return stream


def difference(stream: Stream, expected: Answer) -> str:
    """Return how a stream differs from the undisturbed one: empty, or duplicate, loss, error ..."""
    if stream.error:
        return "error"
    if stream.answer == expected:
        return ""
    for index, output in enumerate(expected[0]):
        came, wanted = stream.tokens.get(index, []), list(output[0])
        if came == wanted:
            continue
        if len(came) > len(wanted):
            return "duplicate"
        return "loss" if came == wanted[: len(came)] or len(came) < len(wanted) else "tokens"
    return "text or log-probabilities"
