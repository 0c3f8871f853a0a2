"""Lanes: what runs beside what, what the table shows, and that an interrupt ends everything."""

import math
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.lanes import lane as lane_module
from tools.lanes import record, report, runner
from tools.lanes.__main__ import chosen
from tools.lanes.lane import ROOT, Lane, Outcome, pytest_lane
from tools.lanes.plans import PLANS, plan
from tools.lanes.record import Record
from tools.lanes.runner import Runner


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have logs and results in a folder of the test's own."""
    for module in (lane_module, runner):
        monkeypatch.setattr(module, "OUTPUT", tmp_path)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    return tmp_path


def shell(name: str, script: str, **options: object) -> Lane:
    return Lane(name, ("sh", "-c", script), **options)  # type: ignore[arg-type]


def test_a_failure_is_reported_and_the_others_run(output: Path) -> None:
    outcomes = Runner([shell("bad", "exit 3"), shell("good", "echo done")], cores=1).run()

    assert [(each.lane.name, each.status, each.word) for each in outcomes] == [
        ("bad", 3, "FAILED"),
        ("good", 0, "ok"),
    ]
    assert (output / "good.log").read_text() == "done\n"


def test_lanes_that_compute_share_the_cores_and_one_waits_beside_them(output: Path) -> None:
    """Each ends only when the other has begun, or not at all."""
    for name in ("first", "second"):
        os.mkfifo(output / name)
    computing = shell("computing", f"echo > {output}/first; cat {output}/second")
    waiting = shell("waiting", f"cat {output}/first; echo > {output}/second", waits=True)

    outcomes = Runner([computing, waiting], cores=1).run()

    assert all(each.passed for each in outcomes)


def test_one_lane_at_a_time_on_one_core(output: Path) -> None:
    script = f"mkdir {output}/taken && rmdir {output}/taken"
    outcomes = Runner([shell(f"lane-{i}", script) for i in range(5)], cores=1).run()
    assert [each.word for each in outcomes] == ["ok"] * 5


def test_a_lane_waits_for_another_and_does_not_run_if_that_failed(output: Path) -> None:
    made = output / "made"
    outcomes = Runner(
        [
            shell("user", f"cat {made}", after=("maker",)),
            shell("unlucky", f"touch {output}/ran", after=("failing",)),
            shell("maker", f"touch {made}"),
            shell("failing", "exit 1"),
        ],
        cores=4,
    ).run()

    words = {each.lane.name: each.word for each in outcomes}
    assert words == {"maker": "ok", "user": "ok", "failing": "FAILED", "unlucky": "not run"}
    assert not (output / "ran").exists()


# Where the tests run in the background of a shell, interrupts are ignored.
INTERRUPTED = """
import signal, sys
from pathlib import Path
from tools.lanes import lane, runner
signal.signal(signal.SIGINT, signal.default_int_handler)
lane.OUTPUT = runner.OUTPUT = runner.ROOT = Path(sys.argv[1])
script = "sleep 1000 & echo $! > {0}; cat {0}; wait".format(sys.argv[2])
try:
    runner.Runner([lane.Lane("endless", ("bash", "-c", script))], 1).run()
except KeyboardInterrupt:
    print("stopped")
"""


def test_an_interrupt_ends_what_a_lane_started(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(begun)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    child = os.pidfd_open(int(begun.read_text()))

    process.send_signal(signal.SIGINT)

    output, _ = process.communicate()
    assert output.endswith("stopped\n")
    select.select([child], [], [])  # returns when the child has ended
    os.close(child)


def test_what_has_not_ended_with_the_time_of_the_run_is_red(output: Path) -> None:
    """The endless lane runs for ever; the lane after it never starts."""
    os.mkfifo(output / "begun")
    endless = shell("endless", f"echo > {output}/begun; sleep 1000")
    needed = shell("needed", f"cat {output}/begun", waits=True)
    later = shell("later", "exit 0", after=("endless",))
    run = Runner([endless, needed, later], cores=1, budget_s=0.0)
    run._deadline = math.inf  # until the lane runs

    def end_the_time(outcome: Outcome) -> None:
        run._deadline = 0.0 if outcome.lane is needed else run._deadline
        Runner._add(run, outcome)

    run._add = end_the_time  # type: ignore[method-assign]
    outcomes = run.run()

    assert {each.lane.name: (each.word, each.passed) for each in outcomes} == {
        "needed": ("ok", True),
        "later": ("out of time", False),
        "endless": ("out of time", False),
    }
    assert report.out_of_time(outcomes) == [
        "out of time: later: never started",
        f"out of time: endless: stopped after {outcomes[-1].wall_s:.0f} s",
    ]
    assert report.table(outcomes, 1.0)[-1].split("|")[2].strip() == "FAILED"


def test_the_table_counts_tests_and_names_reasons(output: Path) -> None:
    test = output / "test_few.py"
    test.write_text(
        "import pytest\n"
        "def test_passes(): print('cases: 7 of 9')\n"
        "@pytest.mark.skip('no GPU')\n"
        "def test_skips(): pass\n"
        "def test_fails(): assert False\n"
    )
    none = output / "test_none.py"
    none.write_text("import pytest\npytest.skip('no GPU', allow_module_level=True)\n")
    own = ("-s", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(output))
    outcomes = Runner([pytest_lane("few", *own, str(test), str(none))], cores=1).run()

    assert [each.word for each in outcomes] == ["FAILED"]
    header, _, few, total = report.table(outcomes, 12.0)
    assert header.split("|")[1:4] == [" lane   ", " result ", " tests "]
    assert [cell.strip() for cell in few.split("|")[1:5]] == ["few", "FAILED", "4", "2"]
    assert [cell.strip() for cell in total.split("|")[1:6]] == [
        *("in all", "FAILED", "4", "2"),
        "12 s",
    ]
    assert report.skips(outcomes) == ["skipped: 2 in few: no GPU"]
    assert report.cases(outcomes) == ["cases: 7 of 9 (few)"]
    counts = report.counts_of(outcomes[0].lane.results)
    assert counts is not None
    assert counts.failed == 1


def skipping_lane(output: Path, name: str, *others: str) -> Lane:
    """Return a lane of two tests that are skipped, and of these others."""
    own = ("-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(output))
    test = output / f"test_{name}.py"
    test.write_text(
        "import pytest\n"
        "@pytest.mark.skip('no engine')\n"
        "def test_skips(): pass\n"
        "@pytest.mark.skip('no engine')\n"
        "def test_skips_too(): pass\n"
        f"{''.join(others)}"
    )
    return pytest_lane(name, *own, str(test))


@pytest.mark.parametrize(
    ("other", "word"),
    [("", "skipped"), ("def test_passes(): pass\n", "ok"), ("def test_f(): 1 / 0\n", "FAILED")],
    ids=["all", "all-but-one", "all-but-a-failure"],
)
def test_a_lane_all_of_whose_tests_were_skipped_is_not_ok(
    output: Path, capsys: pytest.CaptureFixture[str], other: str, word: str
) -> None:
    outcomes = Runner([skipping_lane(output, "few", other)], cores=1).run()

    assert [each.word for each in outcomes] == [word]
    assert f"few: {word}, " in capsys.readouterr().out
    _, _, few, total = report.table(outcomes, 1.0)
    assert [cell.strip() for cell in few.split("|")[1:3]] == ["few", word]
    assert [cell.strip() for cell in total.split("|")[1:3]] == [
        *("in all", "FAILED" if word == "FAILED" else "ok"),
    ]
    assert report.skips(outcomes) == ["skipped: 2 in few: no engine"]


def test_what_waits_for_a_lane_that_was_skipped_runs(output: Path) -> None:
    later = shell("later", "exit 0", after=("few",))
    outcomes = Runner([skipping_lane(output, "few"), later], cores=1).run()
    assert [each.word for each in outcomes] == ["skipped", "ok"]


def test_results_without_a_test_are_not_skipped(output: Path) -> None:
    lane = shell("few", f"echo '<testsuite/>' > {output}/few.xml")
    assert [each.word for each in Runner([lane], cores=1).run()] == ["ok"]


@pytest.mark.parametrize(
    ("log", "progress"),
    [
        ("", "begins"),
        ("[3/39] Building CXX object x.o\n", "3/39"),
        (".....s..F", "9 tests"),
        (f"{'.' * 72} [ 16%]\n....", "16% 76 tests"),
    ],
)
def test_a_log_shows_how_far_a_lane_is(output: Path, log: str, progress: str) -> None:
    each = shell("each", "")
    each.log.write_text(log)
    assert runner._progress(each) == progress


def test_a_lane_without_pytest_has_a_row_without_counts() -> None:
    lines = report.table([Outcome(Lane("lint", ("true",)), 0, 2.0, 1.0)], 2.0)
    assert [cell.strip() for cell in lines[2].split("|")[1:5]] == ["lint", "ok", "", ""]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_each_lane_once_and_all_that_they_wait_for(name: str) -> None:
    names = [each.name for each in plan(name)]
    assert len(set(names)) == len(names)
    assert {before for each in plan(name) for before in each.after} <= set(names)


def test_a_record_keeps_the_sections_of_lanes_that_did_not_run(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = output / "repository"
    monkeypatch.setattr(record, "ROOT", repository)
    git = ("git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=b")
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    path = repository / "nightly.md"
    path.write_text("# nothing yet\n")
    subprocess.run([*git, "add", "nightly.md"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    command = [*git, "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def run(*lanes: Lane) -> str:
        write = Record(path, "nightly").write
        Runner(lanes, 1, on_end=lambda outcome, _: write(outcome)).run()
        return path.read_text()

    long, short = shell("long", "exit 0"), shell("short", "echo 'cases: 3 of 9'")
    run(long)
    first = run(short)
    (repository / "source").write_text("changed\n")
    failing = shell("short", "exit 1")
    second = run(failing, shell("never", "exit 0", after=("short",)))

    assert first.startswith("# Last results of `make test-nightly`\n")
    assert first.count("**ok**, 0 s, of CPU time 0 s; ") == 2
    assert first.count(f", commit {commit}, ") == 2  # its own changes do not count
    assert "changed" not in first
    assert "- cases: 3 of 9 (short)" in first
    head, section = second.split("## short\n")
    assert head == first.split("## short\n")[0]
    assert section.startswith("\n**FAILED**, 0 s")
    assert f", commit {commit}, changed, " in section
    assert "cases" not in section
    assert "never" not in second
    third = run(skipping_lane(output, "long"))
    assert "## long\n\n**skipped**, 2 tests, 2 skipped, " in third
    assert "\n- skipped: 2 in long: no engine\n" in third


def test_chosen_lanes_bring_those_that_they_wait_for() -> None:
    first, second = Lane("first", ("true",)), Lane("second", ("true",))
    third = Lane("third", ("true",), after=("second",))
    assert chosen([first, second, third], ["third"]) == [second, third]
    assert chosen([first, second, third], None) == [first, second, third]


def test_a_lane_that_a_plan_has_not_is_an_error() -> None:
    command = [sys.executable, "-m", "tools.lanes", "nightly", "--lanes", "none"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert "--lanes: must be of every-order, sanitized, " in process.stderr
    assert process.stderr.endswith("got none\n")
