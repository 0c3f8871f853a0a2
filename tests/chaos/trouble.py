"""What chaos does to a cluster, and when: all of it follows from a seed."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

KILLS_AND_FREEZES = (5, 2)
FREEZE_S = (3.0, 20.0)
_POLL_S = 0.05


class Victim(Hashable, Protocol):
    """What may be disturbed. Each method raises ProcessLookupError if it is gone."""

    @property
    def role(self) -> str:
        """What it does in the cluster: "router", "scheduler" or "worker"."""

    @property
    def label(self) -> str:
        """What a report calls it."""

    async def kill(self) -> None:
        """End it by SIGKILL."""

    async def freeze(self) -> None:
        """Let it compute nothing, until `thaw`."""

    async def thaw(self) -> None:
        """Let it run again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One thing to do.

    Attributes:
        after_s: wait so long after the one before.
        freeze_s: freeze the victim so long; 0 kills it.
        draw: in [0, 1), chooses the victim among those that there are.
    """

    after_s: float
    freeze_s: float
    draw: float


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One thing that was done.

    Attributes:
        kind: "kill" or "freeze", and whom.
        at: when, in seconds of the monotonic clock.
    """

    kind: str
    at: float


def plans(seed: int, number: int, mean_s: float) -> list[Plan]:
    """Return so many things to do, five kills to two freezes, in an order drawn from the seed."""
    draw = random.Random(seed)
    kills, freezes = KILLS_AND_FREEZES
    num_freezes = round(number * freezes / (kills + freezes))
    frozen = [True] * num_freezes + [False] * (number - num_freezes)
    draw.shuffle(frozen)
    return [
        Plan(
            after_s=draw.expovariate(1 / mean_s),
            freeze_s=draw.uniform(*FREEZE_S) if freeze else 0.0,
            draw=draw.random(),
        )
        for freeze in frozen
    ]


@dataclass(slots=True)
class Trouble:
    """Carries plans out.

    Attributes:
        victims: returns what there is to disturb.
        report: called with a line about each thing that is done.
        done: what was done so far.
    """

    victims: Callable[[], Sequence[Victim]]
    report: Callable[[str], None]
    done: list[Disturbance] = field(default_factory=list)
    _frozen: set[Victim] = field(default_factory=set)

    async def run(self, todo: list[Plan]) -> None:
        """Do all of it; when this returns or is cancelled, nothing is frozen any more."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as thaws:
            for number, plan in enumerate(todo, 1):
                await asyncio.sleep(plan.after_s)
                victim = await self._choose(plan.draw)
                what = f"freeze of {plan.freeze_s:.0f} s" if plan.freeze_s else "kill"
                self.report(
                    f"{time.monotonic() - began:7.1f} s  {number}/{len(todo)}  {what}: "
                    f"{victim.label}"
                )
                if plan.freeze_s:
                    thaws.create_task(self._freeze(victim, plan.freeze_s))
                else:
                    self._note("kill", victim)
                    with contextlib.suppress(ProcessLookupError):
                        await victim.kill()

    async def _choose(self, draw: float) -> Victim:
        """Return one that is not frozen; waits while there is none."""
        while True:
            able = [each for each in self.victims() if each not in self._frozen]
            if able:
                return able[int(draw * len(able))]
            await asyncio.sleep(_POLL_S)

    async def _freeze(self, victim: Victim, seconds: float) -> None:
        self._note("freeze", victim)
        self._frozen.add(victim)
        try:
            # A supervisor may replace what hangs: then there is nothing left to thaw.
            with contextlib.suppress(ProcessLookupError):
                await victim.freeze()
                await asyncio.sleep(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                await victim.thaw()
            self._frozen.discard(victim)

    def _note(self, what: str, victim: Victim) -> None:
        self.done.append(Disturbance(f"{what} {victim.role}", time.monotonic()))
