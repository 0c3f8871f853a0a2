"""`quire torture` against servers that misbehave on purpose: each fault is noticed, and named."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.torture.comparison import Verdict
from launch.torture.probe import probe
from launch.torture.processes import Victims, signal_named
from launch.torture.server import Api
from launch.torture.suite import Report, Settings, run
from launch.torture.transport import Transport
from launch.torture.workbench import Result
from quire.contract.errors import UnavailableError
from tests.fakes.openai_server import EXTRAS, MODEL, FakeServer, serve

CALM = ("alone", "in company", "warm prefix", "pressure", "clients that drop")


class NoProgress:
    def begin(self, scenario: str) -> None: ...
    def advance(self) -> None: ...


async def tortured(
    fake: FakeServer, victims: Victims | None = None, **settings: Any
) -> dict[str, Result]:
    return {each.scenario: each for each in (await reported(fake, victims, **settings)).results}


async def reported(fake: FakeServer, victims: Victims | None = None, **settings: Any) -> Report:
    own: dict[str, Any] = {"num_questions": 6, "max_tokens": 12, "pressure_tokens": 1}
    own |= {"kill_every_s": 0.0, "timeout_s": 20.0, **settings}
    async with serve(fake):
        return await run(Settings(fake.url, **own), victims, NoProgress())


def changed(results: dict[str, Result]) -> set[str]:
    """The scenarios in which anything was not as alone."""
    return {
        name
        for name, result in results.items()
        if not all(outcome.is_same for outcome in result.outcomes)
    }


@pytest.mark.parametrize("api", Api)
async def test_a_server_without_faults_passes(api: Api) -> None:
    fake = FakeServer()
    report = await reported(fake, api=api)
    assert report.num_changed == 0
    assert [result.scenario for result in report.results] == [*CALM, "drop and come back"]
    assert all(len(result.outcomes) >= 6 for result in report.results)
    compared = [each.logprobs for result in report.results for each in result.outcomes]
    assert all(each.num_compared for each in compared)
    assert fake.paths == {f"/v1/{api.path}"}
    assert fake.num_left >= 6
    server = report.found.server
    assert server.extras.event_ids and all(getattr(server.extras, name) for name in EXTRAS)


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("missing", sorted(EXTRAS))
async def test_extras_are_found_by_what_they_do(missing: str, is_strict: bool) -> None:
    async with (
        serve(FakeServer(EXTRAS - {missing}, is_strict=is_strict)) as fake,
        Transport(f"{fake.url}/v1") as transport,
    ):
        found = await probe(transport, Api.COMPLETIONS, "", 20.0, 0)
    # A server that takes ignore_eos and obeys it not is known by an answer that ends before.
    expected = missing == "ignore_eos" and not is_strict
    assert getattr(found.server.extras, missing) is expected
    assert all(getattr(found.server.extras, name) for name in EXTRAS - {missing})
    assert (found.server.model, found.max_model_len) == (MODEL, 512)


async def test_a_model_that_is_not_listed_is_asked_by_its_name() -> None:
    async with (
        serve(FakeServer(lists_model=False)) as fake,
        Transport(f"{fake.url}/v1") as transport,
    ):
        found = await probe(transport, Api.COMPLETIONS, "other", 20.0, 256)
        assert (found.server.model, found.max_model_len) == ("other", 256)
        with pytest.raises(UnavailableError, match=r"must list models, got {'object': 'list'"):
            await probe(transport, Api.COMPLETIONS, "", 20.0, 0)


async def test_without_seeds_no_sampled_question_is_asked() -> None:
    for extras in (EXTRAS, EXTRAS - {"seed"}):
        report = await reported(FakeServer(extras), scenarios=("in company",))
        names = {each.question for result in report.results for each in result.outcomes}
        assert any(name.startswith("sampled") for name in names) is ("seed" in extras)
        assert report.num_changed == 0


async def test_a_server_that_differs_from_itself_is_reported_as_such() -> None:
    results = await tortured(FakeServer(is_unsteady=True))
    assert list(results) == ["alone"]
    assert results["alone"].count(Verdict.CHANGED) == 6
    assert results["alone"].notes == ["6 questions have no one answer: asked no more"]


async def test_answers_that_depend_on_the_batch() -> None:
    results = await tortured(FakeServer(most_alike=1), scenarios=("in company",))
    assert not changed({"alone": results["alone"]})
    company = results["in company"]
    assert company.count(Verdict.CHANGED) >= 3
    found = next(each for each in company.outcomes if each.verdict is Verdict.CHANGED)
    assert found.position == 11
    assert found.detail.startswith("token 11: ")


@pytest.mark.parametrize(
    "fields", [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")]
)
async def test_reasoning_that_depends_on_the_batch(fields: tuple[str, ...]) -> None:
    fake = FakeServer(EXTRAS - {"return_token_ids", "logprobs"}, most_alike=1, chat_fields=fields)
    results = await tortured(fake, api=Api.CHAT, scenarios=("in company",))
    assert changed(results) == {"in company"}
    assert results["in company"].count(Verdict.CHANGED) >= 3


async def test_answers_that_change_under_pressure_alone() -> None:
    results = await tortured(FakeServer(most_alike=19), pressure_tokens=10_000)
    assert changed(results) == {"pressure"}


async def test_load_is_doubled_until_requests_queue() -> None:
    fake = FakeServer(most_streams=20)
    results = await tortured(fake, pressure_tokens=0, scenarios=("pressure",))
    [note] = results["pressure"].notes
    assert note.startswith(("8 ", "16 ", "32 "))
    assert note.endswith("some waited for others' end")


async def test_load_is_not_doubled_once_answers_do_not_come() -> None:
    fake = FakeServer(fault="drop")
    results = await tortured(fake, pressure_tokens=0, scenarios=("pressure",))
    [note] = results["pressure"].notes
    assert note.startswith("8 long requests at once, ")
    assert note.endswith(" answers did not come")


async def test_answers_that_depend_on_what_is_cached() -> None:
    results = await tortured(FakeServer(has_stale_cache=True))
    assert "warm prefix" in changed(results)
    assert changed(results).isdisjoint(("alone", "in company"))


async def test_answers_that_change_once_a_client_has_left() -> None:
    results = await tortured(FakeServer(forgets_who_left=True))
    assert changed(results) == {"clients that drop", "drop and come back"}


@pytest.mark.parametrize(
    ("fault", "timeout_s", "max_tokens", "reason"),
    [
        # So many that streams meet on a busy machine, too.
        ("error", 20.0, 100, "500: out of memory"),
        ("drop", 20.0, 100, "ClientPayloadError"),
        # One that hangs waits for the others.
        ("hang", 1.0, 12, "no end within 1 s"),
    ],
)
async def test_answers_that_do_not_come(
    fault: str, timeout_s: float, max_tokens: int, reason: str
) -> None:
    results = await tortured(
        FakeServer(fault=fault),
        timeout_s=timeout_s,
        max_tokens=max_tokens,
        scenarios=("in company",),
    )
    assert not changed({"alone": results["alone"]})
    company = results["in company"]
    assert company.count(Verdict.ERROR) >= 3
    assert any(reason in outcome.detail for outcome in company.outcomes)


async def test_log_probabilities_that_depend_on_the_batch() -> None:
    results = await tortured(FakeServer(fault="logprobs"), scenarios=("in company",))
    company = results["in company"]
    assert company.count(Verdict.EQUAL) == len(company.outcomes)
    assert "in company" in changed(results)
    largest = max(each.logprobs.largest_difference for each in company.outcomes)
    assert largest == pytest.approx(1e-6)
    unasked = await tortured(
        FakeServer(fault="logprobs"), with_logprobs=False, scenarios=("in company",)
    )
    assert changed(unasked) == set()


class EndedVictims(Victims):
    """Has seen the end of what it killed before a stream goes on: it may come late on busy cores.

    Args:
        process: to kill.
        number: of the signal.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
        super().__init__([process.pid], number)
        self._process = process

    def kill_next(self) -> int | None:
        pid = super().kill_next()
        self._process.wait()
        return pid


@pytest.fixture
def victim() -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("after_kill", "verdict", "detail"),
    [
        ("", Verdict.EQUAL, ""),
        ("repeats", Verdict.REPEATED, "2 tokens repeated"),
        ("loses", Verdict.LOST, "2 tokens lost"),
        ("changes", Verdict.CHANGED, ", got "),
    ],
)
async def test_streams_that_go_on_after_a_kill(
    victim: "subprocess.Popen[bytes]", after_kill: str, verdict: Verdict, detail: str
) -> None:
    fake = FakeServer(victim=victim, after_kill=after_kill)
    # Longer than what is killed after, so that some streams break in their midst.
    with EndedVictims(victim, signal_named("KILL")) as victims:
        killed = (await tortured(fake, victims, max_tokens=48, scenarios=("kill",)))["kill"]
    assert victim.poll() is not None
    assert any(f"{victim.pid} was killed" in note for note in killed.notes)
    assert any("went on: Last-Event-ID" in note for note in killed.notes)
    assert any(note.startswith("stall: ") for note in killed.notes)
    found = [each for each in killed.outcomes if each.verdict is verdict]
    assert found
    assert any(detail in each.detail for each in found)
    if verdict is Verdict.EQUAL:
        assert len(found) == len(killed.outcomes) == 12  # and once more when it is back


async def test_a_server_that_cannot_go_on_is_asked_again(
    victim: "subprocess.Popen[bytes]",
) -> None:
    fake = FakeServer(victim=victim, has_event_ids=False)
    with EndedVictims(victim, signal_named("SIGTERM")) as victims:
        results = await tortured(fake, victims, max_tokens=48, scenarios=("kill",))
    assert any("went on: asked again" in note for note in results["kill"].notes)
    assert changed(results) == set()


async def test_a_server_that_stays_down_is_reported(victim: "subprocess.Popen[bytes]") -> None:
    fake = FakeServer(victim=victim, after_kill="down")
    with EndedVictims(victim, signal_named("KILL")) as victims:
        report = await reported(fake, victims, max_tokens=48, scenarios=("kill",), timeout_s=2.0)
    killed = report.results[-1]
    assert [each.verdict for each in killed.outcomes[6:]] == [Verdict.ERROR] * 6
    assert not report.is_passed
    assert killed.notes[-1] == "the server is down, and did not come back within 2 s"
    assert len(killed.outcomes) == 12


async def test_a_process_that_was_not_killed_is_no_pass(
    victim: "subprocess.Popen[bytes]",
) -> None:
    with Victims([victim.pid], signal_named("KILL")) as victims:
        victim.kill()
        victim.wait()
        report = await reported(FakeServer(), victims, max_tokens=48, scenarios=("kill",))
    assert (report.num_changed, report.num_not_killed, report.is_passed) == (0, 1, False)
    assert any("had ended" in note for note in report.results[-1].notes)


async def test_who_cannot_be_asked(tmp_path: Path) -> None:
    async with serve(FakeServer()) as fake:
        pass
    with pytest.raises(UnavailableError, match=r"^/v1/models: must list models, got "):
        await run(Settings(fake.url), None, NoProgress())
    status, out, err = await command(fake.url, "--json", str(tmp_path / "none"))
    assert (status, out) == (2, "")
    assert err.startswith("error: /v1/models: ")


async def command(*arguments: str) -> tuple[int | None, str, str]:
    """Exit status and what was printed of `quire torture`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "launch.cli.main", "torture", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("most_alike", [1, 10_000])
async def test_the_command_reports_and_exits_by_what_changed(
    tmp_path: Path, most_alike: int
) -> None:
    path = tmp_path / "figures.json"
    options = ("--questions", "4", "--max-tokens", "12", "--pressure-tokens", "1")
    async with serve(FakeServer(most_alike=most_alike)) as fake:
        status, out, err = await command(fake.url, *options, "--json", str(path))
    assert (status, err) == (int(most_alike == 1), "")
    figures = json.loads(path.read_text())
    table = out.split("\n\n")[1].splitlines()
    assert table[0].split()[:4] == ["asked", "equal", "changed", "errors"]
    names = [*CALM, "drop and come back"]
    rows = {
        name: line.removeprefix(name).split() for name, line in zip(names, table[1:], strict=True)
    }
    for name in CALM:
        of_scenario = figures["scenarios"][name]
        asked, equal, differing, errors, *_ = rows[name]
        assert int(asked.replace(",", "")) == of_scenario["asked"] > 0
        assert int(equal) == of_scenario["equal"]
        assert int(differing) == of_scenario["changed"]
        assert int(errors) == of_scenario["error"] == 0
    company = figures["scenarios"]["in company"]
    assert (company["changed"] > 0) is (most_alike == 1)
    assert ("in company\n" in out) is (most_alike == 1)
    assert [each["verdict"] for each in company["differing"]] == ["changed"] * company["changed"]
    assert "has        return_token_ids, logprobs, ignore_eos, seed, top_k, ids of events" in out
