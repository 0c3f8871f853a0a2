"""What chaos does to containers: whom it chooses, and that all of them run in the end."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import containers
from tests.chaos.__main__ import SCENARIOS
from tests.chaos.containers import Container, Restarts, containers_in, pages_in
from tests.chaos.paths import Page
from tests.chaos.trouble import Plan, Trouble

ROOT = Path(__file__).parents[2]
ROUTER = Container("router", "quire_router_1", "r1")
GONE = "docker kill r1: Error response from daemon: Container r1 is not running"

UNABLE = "docker pause r1: OCI runtime pause failed: unable to freeze: unknown"


def state_of(service: str, **changed: Any) -> Mapping[str, Any]:
    """What `docker inspect` says of a container, as far as it is read."""
    return {
        "Id": f"id of {service}",
        "Name": f"/quire_{service}_1",
        "Config": {"Labels": {"com.docker.compose.service": service}},
        "State": {"Running": True, "Pid": 7},
        "NetworkSettings": {"Networks": {"a": {"IPAddress": ""}, "b": {"IPAddress": "10.0.0.2"}}},
        "RestartCount": 0,
        **changed,
    }


@dataclass(slots=True)
class Engine:
    """What `docker` was told, in its order; some commands fail, as often as they are listed."""

    failing: dict[str, list[str]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def __call__(self, command: str, container: str) -> str:
        self.told.append(f"{command} {container}")
        errors = self.failing.get(command)
        assert not errors, errors.pop(0)
        return ""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(containers, "docker", engine)
    return engine


async def test_a_container_that_is_killed_is_started_again(engine: Engine) -> None:
    await ROUTER.kill()
    assert engine.told == ["kill r1", "start r1"]


async def test_one_that_ended_by_itself_is_started_too(engine: Engine) -> None:
    engine.failing["kill"] = [GONE]
    with pytest.raises(ProcessLookupError, match="quire_router_1: docker kill r1"):
        await ROUTER.kill()
    assert engine.told == ["kill r1", "start r1"]


async def test_a_container_that_the_engine_does_not_stop_in_time_is_paused_again(
    engine: Engine,
) -> None:
    engine.failing["pause"] = [UNABLE] * 2
    await ROUTER.freeze()
    assert engine.told == ["pause r1"] * 3
    engine.failing["pause"] = [UNABLE] * 100
    with pytest.raises(AssertionError, match="unable to freeze"):
        await ROUTER.freeze()


async def test_an_engine_that_fails_otherwise_ends_the_run(engine: Engine) -> None:
    engine.failing["pause"] = ["Cannot connect to the Docker daemon"]
    with pytest.raises(AssertionError, match="Cannot connect"):
        await ROUTER.freeze()


async def test_whatever_is_paused_is_not_chosen_and_goes_on_in_the_end(engine: Engine) -> None:
    victims = [ROUTER, Container("worker", "quire_worker-0_1", "w0")]
    lines: list[str] = []
    trouble = Trouble(lambda: victims, lines.append)
    await trouble.run([Plan(0.0, 0.2, 0.0), Plan(0.05, 0.0, 0.0), Plan(0.6, 0.0, 0.0)])
    assert engine.told == [
        *("pause r1", "kill w0", "start w0", "unpause r1"),
        *("kill r1", "start r1"),
    ]
    assert [each.kind for each in trouble.done] == ["freeze router", "kill worker", "kill router"]
    assert ["quire_router_1" in line for line in lines] == [True, False, True]


async def test_nothing_stays_paused_when_a_run_is_cancelled(engine: Engine) -> None:
    trouble = Trouble(lambda: [ROUTER], lambda _: None)
    running = asyncio.create_task(trouble.run([Plan(0.0, 60.0, 0.0)]))
    while not engine.told:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert engine.told == ["pause r1", "unpause r1"]


def test_a_seed_chooses_the_same_containers_in_whatever_order_the_engine_lists_them() -> None:
    states = [state_of(name) for name in ("worker-1", "router", "worker-0", "scheduler")]
    found = containers_in(states)
    assert found == containers_in(states[::-1])
    assert [each.role for each in found] == ["router", "scheduler", "worker", "worker"]
    assert found[0] == Container("router", "quire_router_1", "id of router")


def test_counters_are_read_from_what_runs_and_has_an_address() -> None:
    stopped = state_of("scheduler", State={"Running": False, "Pid": 0})
    without = state_of("scheduler", NetworkSettings={"Networks": {"a": {"IPAddress": ""}}})
    found = pages_in([state_of("router"), stopped, without, state_of("worker-0")])
    assert found == [Page(7, "10.0.0.2:9090")]


def test_what_the_engine_starts_again_is_counted_also_after_it_counts_anew() -> None:
    restarts = Restarts()
    for count in (0, 1, 1, 3, 0, 1):
        restarts.note([state_of("scheduler", RestartCount=count), state_of("router")])
    assert restarts.by_service == {"scheduler": 4}


def test_a_scenario_is_named_where_users_look() -> None:
    for name in ("Makefile", "README.md"):
        [line] = re.findall(r".*\bSCENARIO=.*", (ROOT / name).read_text())[:1]
        assert not {each for each in SCENARIOS if each not in re.split(r"[^a-z-]", line)}, name
