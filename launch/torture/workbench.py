"""What scenarios share: server, questions, references, chance and progress."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from launch.torture.answers import Answer
from launch.torture.comparison import Outcome, Verdict, compare
from launch.torture.errors import AskError
from launch.torture.questions import Question
from launch.torture.server import Server, Watch


@dataclass(slots=True)
class Result:
    """What came of a scenario.

    Attributes:
        scenario: its name.
        outcomes: one for each time that a question was asked.
        notes: what else was seen.
        num_not_killed: processes that were to be killed, and were not.
    """

    scenario: str
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_not_killed: int = 0

    def count(self, *verdicts: Verdict) -> int:
        """Return how many outcomes have one of some verdicts."""
        return sum(outcome.verdict in verdicts for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Workbench:
    """Where scenarios work.

    Attributes:
        server: that is asked.
        questions: all of them; those without a reference are left out of scenarios.
        references: the answers alone, by question.
        rng: of all chance.
        max_words: of a prompt.
        long_words: of a long prompt.
        long_tokens: of a long answer.
        tokens_per_word: of prompts.
        advance: is called whenever a question was answered.
    """

    server: Server
    questions: Sequence[Question]
    references: dict[Question, Answer]
    rng: random.Random
    max_words: int
    long_words: int
    long_tokens: int
    tokens_per_word: float
    advance: Callable[[], None]

    @property
    def known(self) -> list[Question]:
        """The questions that have a reference."""
        return [question for question in self.questions if question in self.references]

    async def ask(self, question: Question, watch: Watch | None = None) -> Outcome:
        """Ask a question that has a reference, and compare; arguments as of `Server.ask`."""

        async def compared(reference: Answer) -> Outcome:
            return compare(question.name, reference, await self.server.ask(question, watch))

        return await self.settle(question, compared)

    async def settle(
        self, question: Question, asked: Callable[[Answer], Awaitable[Outcome]]
    ) -> Outcome:
        """Return what comes of asking, given the reference; an error is an outcome, too."""
        try:
            return await asked(self.references[question])
        except AskError as error:
            return Outcome(question.name, Verdict.ERROR, detail=str(error))
        finally:
            self.advance()

    async def ask_all(self, questions: Sequence[Question]) -> list[Outcome]:
        """Ask questions at once."""
        return await asyncio.gather(*map(self.ask, questions))

    async def ask_in_turn(self, questions: Sequence[Question]) -> list[Outcome]:
        """Ask questions one at a time."""
        return [await self.ask(question) for question in questions]

    async def refer(self, questions: Sequence[Question]) -> list[Outcome]:
        """Ask alone for what has no reference yet; return what could not be answered."""
        failed = []
        for question in questions:
            try:
                self.references[question] = await self.server.ask(question)
            except AskError as error:
                failed.append(Outcome(question.name, Verdict.ERROR, detail=str(error)))
            self.advance()
        return failed
