"""Stored results of lanes: what a lane opened is observed, and a change of it runs the lane."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from tools.lanes import gate, inputs, lane, machine, results, runner, trace
from tools.lanes import results as results_module
from tools.lanes.gate import Decision, Recorder, decide, listing
from tools.lanes.inputs import ALL_NAMES, Inputs, Tree, built, inputs_of
from tools.lanes.lane import Lane, Outcome
from tools.lanes.plans import CI, NIGHTLY
from tools.lanes.results import Result, path_of, stored
from tools.lanes.trace import Trace

AVX, AMX = ("avx2",), ("amx_bf16", "avx2")
SITE = str(machine.SITE_PACKAGES)


class Installed:
    """Packages of which one has a file."""

    versions: ClassVar = {"torch": "2.13.0", "pybind11": "3.0"}

    def of_file(self, name: str) -> str | None:
        return "torch" if name == "torch/_ops.py" else None


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a few files, in the place of Quire's."""
    for module in (gate, inputs, lane, machine, results_module, runner, trace):
        monkeypatch.setattr(module, "ROOT", tmp_path, raising=False)
    for module in (lane, runner):
        monkeypatch.setattr(module, "OUTPUT", tmp_path / "build/lanes")
    monkeypatch.setattr(machine, "instruction_sets", lambda: AVX)
    monkeypatch.setattr(machine, "toolchain", lambda: {"c++": "12"})
    for name in ("csrc/a.h", "csrc/cpu/b.cpp", "router/x.py", "router/y.py", "docs/p.md", "r.md"):
        write(tmp_path, name, f"of {name}")
    (tmp_path / ".gitignore").write_text("/build/\n__pycache__/\n")
    (tmp_path / "build/lanes").mkdir(parents=True)
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    return tmp_path


def write(repository: Path, name: str, text: str) -> None:
    path = repository / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def ended(each: Lane, read: Trace, status: int = 0) -> Outcome:
    """Return the outcome of a lane that did to files what a trace says."""
    read.write(each.trace)
    each.log.touch()
    return Outcome(each, status)


def recorder(*lanes: Lane) -> Recorder:
    return Recorder(Tree(), Installed(), lanes)  # type: ignore[arg-type]


def decisions(*lanes: Lane, commit: str | None = None) -> dict[str, str]:
    decided = decide(lanes, Tree(), Installed.versions, commit)
    return {each.lane.name: each.why for each in decided}


ROUTER = Lane("router", ("true",))
READ = Trace(
    opened={"router/x.py", "router/__pycache__/y.cpython-311.pyc", f"{SITE}/torch/_ops.py"}
)


def test_a_result_stands_until_something_that_the_lane_opened_changes(repository: Path) -> None:
    recorder(ROUTER).take(ended(ROUTER, READ), ())
    assert decisions(ROUTER) == {"router": ""}

    write(repository, "docs/p.md", "another page")
    assert decisions(ROUTER) == {"router": ""}

    write(repository, "router/y.py", "what a compiled file was made from")
    assert decisions(ROUTER) == {"router": "changed: router/"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.setattr(machine, "toolchain", lambda: {"c++": "13"}), "changed: c++ 13"),
        (lambda m: m.setitem(Installed.versions, "torch", "3"), "changed: package torch"),
        (
            lambda m: m.setattr(machine, "instruction_sets", lambda: AMX),
            "it has no result for this kind of processor",
        ),
        (lambda m: m.setitem(Installed.versions, "pybind11", "4"), ""),
    ],
    ids=["compiler", "package", "processor", "other-package"],
)
def test_a_result_stands_for_its_tools_packages_and_processor(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None], why: str
) -> None:
    recorder(ROUTER).take(ended(ROUTER, READ), ())
    change(monkeypatch)
    assert decisions(ROUTER) == {"router": why}


def test_a_lane_without_arithmetic_stands_for_every_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lint = replace(ROUTER, arithmetic=False)
    recorder(lint).take(ended(lint, READ), ())
    monkeypatch.setattr(machine, "instruction_sets", lambda: AMX)
    assert decisions(lint) == {"router": ""}


def test_another_command_or_variable_runs_the_lane(repository: Path) -> None:
    recorder(ROUTER).take(ended(ROUTER, READ), ())
    for other in (
        replace(ROUTER, command=("true", "-v")),
        replace(ROUTER, environment={"DEPTH": "all"}),
    ):
        assert decisions(other) == {"router": "changed: its command"}
    # The checkout may lie elsewhere.
    assert results.plain_command(replace(ROUTER, command=(f"{repository}/a.sh",))) == ("a.sh",)


def test_a_new_file_runs_lanes_that_listed_its_folder(repository: Path) -> None:
    listing_one = Trace(opened={"router/x.py"}, listed={"router"})
    listing_none = Trace(opened={"router/x.py"})
    lists, reads = replace(ROUTER, name="lists"), replace(ROUTER, name="reads")
    store = recorder(lists, reads)
    store.take(ended(lists, listing_one), ())
    store.take(ended(reads, listing_none), ())

    write(repository, "router/z.py", "new")

    assert decisions(lists, reads) == {"lists": "changed: names in router", "reads": ""}


def test_what_asks_git_for_names_depends_on_all_names(repository: Path) -> None:
    recorder(ROUTER).take(ended(ROUTER, Trace(opened={"r.md", ".git/index"})), ())
    write(repository, "docs/p.md", "changed")
    assert decisions(ROUTER) == {"router": ""}
    write(repository, "docs/q.md", "new")
    assert decisions(ROUTER) == {"router": f"changed: {ALL_NAMES}"}


def test_results_are_no_input_and_those_of_others_are_kept(repository: Path) -> None:
    other = replace(ROUTER, name="other")
    store = recorder(ROUTER, other)
    store.take(ended(ROUTER, Trace(opened={"r.md", ".git/index"}, listed={"."})), ())
    store.take(ended(other, READ), ())
    assert decisions(ROUTER, other) == {"router": "", "other": ""}


def test_generated_files_stand_for_their_sources(repository: Path) -> None:
    write(repository, "protos/a.proto", "a")
    write(repository, "CMakeLists.txt", "cmake")
    read = Trace(opened={"r.md", "quire/v1/a_pb2.py", f"{SITE}/worker_svc/_C.cpython-311.so"})
    found = inputs_of(read, Tree(), Installed())  # type: ignore[arg-type]
    assert {"csrc/", "protos/", "CMakeLists.txt", "r.md"} <= found.files
    assert found.distributions == {"pybind11"}


def test_who_reads_what_a_lane_built_depends_on_its_sources(repository: Path) -> None:
    """The builder ends after its reader; the third lane shares nothing but compiled Python."""
    builder, reader, third = (replace(ROUTER, name=name) for name in ("builder", "reader", "third"))
    pyc = "router/__pycache__/x.cpython-311.pyc"
    built_ = Trace(opened={"csrc/a.h"}, written={"build/emulated/_C.so.tmp", pyc})
    store = recorder(builder, reader, third)
    store.take(ended(reader, Trace(opened={"r.md", "build/emulated/_C.so"})), (builder,))
    assert stored(reader) is None  # not before it is known what the file was made from
    store.take(ended(builder, built_), ())
    store.take(ended(third, Trace(opened={"docs/p.md", pyc})), ())

    write(repository, "csrc/a.h", "changed")

    why = {"builder": "changed: csrc/a.h", "reader": "changed: csrc/a.h", "third": ""}
    assert decisions(builder, reader, third) == why


def test_what_a_lane_waits_for_is_an_input(repository: Path) -> None:
    images = replace(ROUTER, name="images")
    compose = replace(ROUTER, name="compose", after=("images",))
    store = recorder(images, compose)
    store.take(ended(images, Trace(opened={"csrc/a.h"})), ())
    store.take(ended(compose, Trace(opened={"docs/p.md"})), ())
    write(repository, "docs/p.md", "changed")
    assert decisions(images, compose) == {
        "images": "compose needs it",
        "compose": "changed: docs/p.md",
    }
    write(repository, "csrc/a.h", "changed")
    assert decisions(images, compose)["compose"].startswith("changed: csrc/a.h")


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (Trace(opened={"r.md", "build/old/a.so"}), "it read build/old, which was there before"),
        (Trace(opened={"r.md"}, complete=False), "the kernel dropped events"),
        (Trace(), "it opened no file of the repository"),
    ],
    ids=["unknown-file", "dropped-events", "nothing"],
)
def test_a_result_whose_inputs_are_not_known_is_not_stored(
    repository: Path, capsys: pytest.CaptureFixture[str], read: Trace, reason: str
) -> None:
    write(repository, "build/old/a.so", "of another run")
    recorder(ROUTER).take(ended(ROUTER, read), ())
    assert stored(ROUTER) is None
    assert f"router: its result is not stored: {reason}" in capsys.readouterr().out


def test_a_failure_takes_the_stored_result_away() -> None:
    recorder(ROUTER).take(ended(ROUTER, READ), ())
    assert stored(ROUTER) is not None
    recorder(ROUTER).take(ended(ROUTER, READ, status=1), ())
    assert stored(ROUTER) is None


def test_a_result_that_was_changed_by_hand_does_not_stand() -> None:
    recorder(ROUTER).take(ended(ROUTER, READ), ())
    path = path_of("router", AVX)
    fields = json.loads(path.read_text())
    fields["inputs"].pop("router/")
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"must be as .ci/run wrote it, got another digest"):
        stored(ROUTER)
    assert decisions(ROUTER)["router"].startswith("router.")


def test_one_of_the_lanes_that_stand_is_drawn_by_the_commit() -> None:
    lanes = [replace(ROUTER, name=name) for name in "abc"]
    store = recorder(*lanes)
    for each in lanes:
        store.take(ended(each, READ), ())
    drawn = {}
    for commit in ("10", "11", "12"):
        drawn[commit] = [name for name, why in decisions(*lanes, commit=commit).items() if why]
    assert drawn == {"10": ["b"], "11": ["c"], "12": ["a"]}  # 16, 17 and 18 modulo 3


def test_the_listing_says_why_a_lane_runs_and_what_stands(repository: Path) -> None:
    changed = replace(ROUTER, name="changed")
    store = recorder(ROUTER, changed)
    store.take(ended(ROUTER, READ), ())
    store.take(ended(changed, Trace(opened={"docs/p.md"})), ())
    write(repository, "docs/p.md", "changed")
    runs, reported = listing(decide([changed, ROUTER], Tree(), None, None))
    result = stored(ROUTER)
    assert isinstance(result, Result)
    assert runs == "changed  runs      changed: docs/p.md"
    assert reported.startswith(f"router   reported  {result.digest[:12]}: ok, 0 s on ")


def test_a_run_may_report_nothing() -> None:
    assert listing([]) == []


def test_folders_stand_for_all_of_their_files() -> None:
    tree = Tree()
    assert tree.folded(["csrc/a.h", "csrc/cpu/b.cpp", "router/x.py"]) == {"csrc/", "router/x.py"}
    names = Inputs(files={"csrc/a.h", "csrc/cpu/b.cpp"}, listed={"csrc/cpu", "docs"}).names(tree)
    assert names == ["csrc/", "names in docs"]


def test_only_what_lanes_build_has_a_lane() -> None:
    names = ["build/emulated/a.o", "build/lanes/unit.xml", "build/setup.log", "router/x.py"]
    assert built(names) == {"build/emulated"}


def test_results_of_gate_and_nightly_do_not_share_a_name() -> None:
    names = [each.name for each in (*CI, *NIGHTLY)]
    assert len(set(names)) == len(names)


def test_a_decision_without_a_reason_needs_a_result() -> None:
    with pytest.raises(AssertionError):
        listing([Decision(ROUTER, "")])


@pytest.mark.skipif(os.geteuid() != 0, reason="fanotify takes root")
def test_a_trace_has_what_a_command_and_its_children_open(repository: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tools.lanes import lane, trace\n"
        "trace.ROOT = Path(sys.argv[1])\n"
        "sys.exit(trace.run(Path(sys.argv[2]), sys.argv[3:]))\n"
    )
    script = "cat docs/p.md > build/made; (exec sh -c 'cat csrc/a.h; ls router'); exit 3"
    output = repository / "build/t.json"
    command = (*("python3", "-c", code, str(repository), str(output)), "sh", "-c", script)
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    read = Trace.read(output)
    assert done.returncode == 3
    assert read.complete
    assert {"docs/p.md", "csrc/a.h", "build/made"} == read.opened - {"build"}
    assert read.listed >= {"router"}
    assert read.written == {"build/made"}
