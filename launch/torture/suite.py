"""The whole suite: what is found of a server, then one scenario after another."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from launch.torture.company import alone, in_company, warm_prefix
from launch.torture.comparison import Verdict
from launch.torture.drops import comebacks, drops
from launch.torture.kill import kill
from launch.torture.pressure import pressure
from launch.torture.probe import Found, probe
from launch.torture.processes import Victims
from launch.torture.questions import make_questions
from launch.torture.server import Api
from launch.torture.transport import Transport
from launch.torture.workbench import Result, Workbench
from quire.contract.errors import ConfigError, UnavailableError

MAX_QUESTIONS = 512
MAX_TOKENS = 4096
MAX_PRESSURE_TOKENS = 2**24
# Killing comes last, as a server may not come back.
SCENARIOS = (
    *("alone", "in company", "warm prefix", "pressure", "clients that drop"),
    *("drop and come back", "kill"),
)
_MOST_WORDS, _MOST_LONG_WORDS = 256, 1024
_LEAST_MODEL_LEN = 128


@dataclass(frozen=True, slots=True)
class Settings:
    """What is to be asked.

    Attributes:
        url: of the server, with the /v1 or without.
        api: that is asked.
        model: by name; "" for the first that the server lists.
        api_key: sent as a bearer token; None for none.
        num_questions: in each scenario.
        max_tokens: of an answer.
        max_model_len: tokens of prompt and answer; 0 for what the server lists.
        seed: of questions and all chance.
        timeout_s: longest that an answer may take, breaks and coming back included.
        pressure_tokens: of long requests at once; 0 to double them until one waits.
        kill_every_s: least time between two kills.
        with_logprobs: log-probabilities are asked for and compared.
        scenarios: names of those that follow `alone`; none for all that the server has.

    Raises:
        ConfigError: one is out of bounds.
    """

    url: str
    api: Api = Api.COMPLETIONS
    model: str = ""
    api_key: str | None = None
    num_questions: int = 24
    max_tokens: int = 64
    max_model_len: int = 0
    seed: int = 0
    timeout_s: float = 120.0
    pressure_tokens: int = 0
    kill_every_s: float = 2.0
    with_logprobs: bool = True
    scenarios: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"URL: must begin with http:// or https://, got {self.url[:80]!r}")
        _check("questions", self.num_questions, 1, MAX_QUESTIONS)
        _check("max-tokens", self.max_tokens, 1, MAX_TOKENS)
        _check("pressure-tokens", self.pressure_tokens, 0, MAX_PRESSURE_TOKENS)
        _check("timeout-s", self.timeout_s, 0.01, 86_400)
        _check("kill-every-s", self.kill_every_s, 0, 3600)
        for name in self.scenarios:
            if name not in SCENARIOS:
                raise ConfigError(f"scenario: must be of {', '.join(SCENARIOS)}, got {name!r}")
        if self.max_model_len:
            _check("max-model-len", self.max_model_len, _LEAST_MODEL_LEN, 2**31)

    @property
    def base_url(self) -> str:
        """Where the API is."""
        url = self.url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"


@dataclass(frozen=True, slots=True)
class Report:
    """What came of everything.

    Attributes:
        settings: that were given.
        found: of the server.
        results: of the scenarios, in order.
    """

    settings: Settings
    found: Found
    results: Sequence[Result]

    @property
    def num_changed(self) -> int:
        """How many answers were not the reference in all, or did not come."""
        return sum(not each.is_same for result in self.results for each in result.outcomes)

    @property
    def num_not_killed(self) -> int:
        """How many processes were to be killed, and were not."""
        return sum(result.num_not_killed for result in self.results)

    @property
    def is_passed(self) -> bool:
        """Whether every answer was the same, and every process was killed that was to be."""
        return not self.num_changed and not self.num_not_killed


class Progress(Protocol):
    """Takes how far the suite is."""

    def begin(self, scenario: str) -> None:
        """A scenario begins."""

    def advance(self) -> None:
        """A question was answered."""


async def run(settings: Settings, victims: Victims | None, progress: Progress) -> Report:
    """Ask everything.

    Args:
        settings: for it.
        victims: processes to kill; None for none.
        progress: receives how far it is.

    Raises:
        ConfigError: the scenario `kill` is asked for, and no process named.
        UnavailableError: the server could not be asked, or answered no question alone.
    """
    if "kill" in settings.scenarios and victims is None:
        raise ConfigError("kill: must name a process for the scenario kill, got none")
    async with Transport(settings.base_url, settings.api_key) as transport:
        progress.begin("probe")
        found = await probe(
            transport, settings.api, settings.model, settings.timeout_s, settings.max_model_len
        )
        if not settings.with_logprobs:
            extras = replace(found.server.extras, logprobs=False)
            found = replace(found, server=replace(found.server, extras=extras))
        bench = _bench(settings, found, progress)
        results: list[Result] = []
        for name, scenario in _scenarios(settings, found, victims):
            progress.begin(name)
            results.append(await scenario(bench))
            if bench.references:
                continue
            outcomes = results[0].outcomes
            if all(outcome.verdict is Verdict.ERROR for outcome in outcomes):
                raise UnavailableError(f"questions: must be answered, got {outcomes[0].detail}")
            break  # nothing is left to compare with
        return Report(settings, found, results)


def _bench(settings: Settings, found: Found, progress: Progress) -> Workbench:
    """Make questions that fit the model."""
    room = found.max_model_len - settings.max_tokens
    if room < _LEAST_MODEL_LEN // 2:
        raise ConfigError(
            f"max-tokens: must leave {_LEAST_MODEL_LEN // 2} tokens for prompts of a model of "
            f"{found.max_model_len}, got {settings.max_tokens}"
        )
    # Longer prompts of "warm prefix" have twice as many, chat templates a few of their own, and
    # words are not all of one length.
    max_words = max(8, min(_MOST_WORDS, int(room / found.tokens_per_word / 3)))
    long_tokens = min(4 * settings.max_tokens, found.max_model_len // 3)
    long_room = found.max_model_len - long_tokens
    long_words = max(8, min(_MOST_LONG_WORDS, int(long_room / found.tokens_per_word * 0.7)))
    rng = random.Random(settings.seed)
    questions = make_questions(
        rng,
        settings.num_questions,
        max_words=max_words,
        max_tokens=settings.max_tokens,
        with_seeds=found.server.extras.seed,
        with_top_k=found.server.extras.top_k,
    )
    return Workbench(
        server=found.server,
        questions=questions,
        references={},
        rng=rng,
        max_words=max_words,
        long_words=long_words,
        long_tokens=long_tokens,
        tokens_per_word=found.tokens_per_word,
        advance=progress.advance,
    )


def _scenarios(
    settings: Settings, found: Found, victims: Victims | None
) -> list[tuple[str, Callable[[Workbench], Awaitable[Result]]]]:
    """Return what is to be run, in order."""
    scenarios: dict[str, Callable[[Workbench], Awaitable[Result]]] = {
        "alone": alone,
        "in company": in_company,
        "warm prefix": warm_prefix,
        "pressure": lambda bench: pressure(bench, settings.pressure_tokens),
        "clients that drop": drops,
    }
    if found.server.extras.event_ids:
        scenarios["drop and come back"] = comebacks
    if victims is not None:
        scenarios["kill"] = lambda bench: kill(bench, victims, settings.kill_every_s)
    wanted = {"alone", *(settings.scenarios or SCENARIOS)}
    return [(name, scenario) for name, scenario in scenarios.items() if name in wanted]


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name}: must be in [{least:g}, {most:g}], got {value:g}")
