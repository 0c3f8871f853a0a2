"""tools/lock.py: what a lock leaves out, that only what it pins is fetched, and that it is fresh.

tools/wanted.py too, by which a list takes over what pyproject.toml requires.
"""

import hashlib
import re
import tomllib
import zipfile
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import lock, wanted


def package(name: str, *needs: str, requested: bool = False) -> dict[str, object]:
    """One entry of pip's installation report."""
    return {"metadata": {"name": name, "requires_dist": list(needs)}, "requested": requested}


def test_what_only_a_package_left_out_needs_is_left_out_too() -> None:
    packages = [
        package("tokenizers", "Hub>=1", "numpy; extra == 'testing'", requested=True),
        package("typer", "rich", requested=True),
        package("hub", "http-client", "rich"),
        package("http_client"),
        package("rich", "tzdata; sys_platform == 'win32'"),
        package("numpy"),
        package("tzdata"),
    ]
    assert lock._reachable(packages, set()) == {"tokenizers", "typer", "hub", "http-client", "rich"}
    assert lock._reachable(packages, {"hub"}) == {"tokenizers", "typer", "rich"}


def make_wheel(directory: Path, version: str) -> Path:
    """A wheel of one module."""
    path = directory / f"quire_lock_test-{version}-py3-none-any.whl"
    info = f"quire_lock_test-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("quire_lock_test.py", "")
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: quire-lock-test\nVersion: {version}\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_what_an_extra_of_a_need_asks_for_is_kept() -> None:
    packages = [
        package("torch", "toolkit[runtime,blas]; sys_platform == 'linux'", requested=True),
        package("toolkit", "runtime-of; extra == 'runtime'", "fft; extra == 'fft'"),
        package("runtime-of"),
        package("fft"),
    ]
    assert lock._reachable(packages, set()) == {"torch", "toolkit", "runtime-of"}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that pip finds, and no other."""
    (tmp_path / "index").mkdir()
    path = make_wheel(tmp_path / "index", "1.0")
    (tmp_path / "demo.in").write_text("quire-lock-test\n")
    monkeypatch.setattr(lock, "FOLDERS", (tmp_path,))
    monkeypatch.setattr(lock, "WHEELHOUSE", tmp_path / "wheelhouse")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path


def test_what_is_resolved_is_what_is_fetched(wheel: Path, tmp_path: Path) -> None:
    lock.resolve(["demo"])
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (
        f"quire-lock-test==1.0 \\\n    --hash=sha256:{digest}\n"
        in (tmp_path / "demo.txt").read_text()
    )
    lock.fetch("demo")
    assert (tmp_path / "wheelhouse/demo" / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_wheel_that_is_not_the_one_that_was_pinned_is_refused(wheel: Path) -> None:
    lock.resolve(["demo"])
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("quire_lock_test_evil.py", "")
    with pytest.raises(SystemExit, match=r"demo\.txt cannot be fetched"):
        lock.fetch("demo")


def test_what_is_there_is_not_fetched_again(wheel: Path, tmp_path: Path) -> None:
    lock.resolve(["demo"])
    lock.fetch("demo")
    wheel.unlink()
    lock.fetch("demo")
    (tmp_path / "demo.txt").write_text("quire-lock-test==2.0 --hash=sha256:" + "0" * 64)
    with pytest.raises(SystemExit, match="cannot be fetched"):
        lock.fetch("demo")


def test_what_is_resolved_alone_keeps_to_the_versions_of_the_others(
    wheel: Path, tmp_path: Path
) -> None:
    lock.resolve(["demo"])
    make_wheel(wheel.parent, "2.0")
    (tmp_path / "other.in").write_text("quire-lock-test\n")
    lock.resolve(["other"])
    assert "quire-lock-test==1.0 " in (tmp_path / "other.txt").read_text()
    lock.resolve(["demo", "other"])
    for name in ("demo", "other"):
        assert "quire-lock-test==2.0 " in (tmp_path / f"{name}.txt").read_text()


def test_a_list_that_is_not_there_is_named(wheel: Path) -> None:
    with pytest.raises(SystemExit, match=r"NAME: must be a list of requirements, got nothing"):
        lock.fetch("nothing")


def test_every_lock_is_what_its_list_and_pyproject_want() -> None:
    assert lock.faults() == []
    assert {"dev", "worker", "router"} <= set(lock._names())


@pytest.fixture
def project(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pyproject.toml with an extra and a group, of which the list `demo` has a fresh lock."""
    path = tmp_path / "pyproject.toml"
    path.write_text(
        """
        [build-system]
        requires = ["builder>=1"]
        [project]
        name = "project"
        dependencies = ["quire-lock-test"]
        [project.optional-dependencies]
        some = ["quire-lock-test>=0.5"]
        all = ["project[some]", "quire-lock-test<3"]
        [dependency-groups]
        inner = ["checker"]
        outer = [{ include-group = "inner" }, "tester>=2"]
        """
    )
    monkeypatch.setattr(wanted, "PYPROJECT", path)
    (tmp_path / "demo.in").write_text("# pyproject: all\n")
    pin_by_hand(tmp_path / "demo.in", "1.0")
    assert lock.faults() == []
    return path


def pin_by_hand(source: Path, version: str) -> None:
    """A lock without pip."""
    lock.write_lock(source, f"quire-lock-test=={version} \\\n    --hash=sha256:00\n")


def test_extras_and_groups_bring_what_they_name(project: Path) -> None:
    everything = ["quire-lock-test", "quire-lock-test>=0.5", "quire-lock-test<3"]
    assert wanted.wanted(["all"]) == everything
    assert wanted.wanted(["outer", "build-system"]) == ["checker", "tester>=2", "builder>=1"]
    with pytest.raises(SystemExit, match=r"NAME: must be an extra or a group .*, got none"):
        wanted.wanted(["none"])


@pytest.mark.parametrize("what", ["pyproject", "list", "pin", "hash", "lock"])
def test_a_lock_is_stale_once_what_it_was_made_of_or_a_pin_changes(
    project: Path, tmp_path: Path, what: str
) -> None:
    path, old, new = {
        "pyproject": (project, "<3", "<2"),
        "list": (tmp_path / "demo.in", "all", "some"),
        "pin": (tmp_path / "demo.txt", "==1.0", "==1.1"),
        "hash": (tmp_path / "demo.txt", "--hash=sha256:", "--hash=sha256:0"),
        "lock": (tmp_path / "demo.txt", "", ""),
    }[what]
    if what == "lock":
        path.unlink()
    else:
        path.write_text(path.read_text().replace(old, new))
    (fault,) = lock.faults()
    assert fault.startswith("demo.txt: must be what demo.in and pyproject.toml want")


def test_comments_and_extras_that_a_list_does_not_take_leave_its_lock_fresh(
    project: Path, tmp_path: Path
) -> None:
    project.write_text(project.read_text().replace("tester>=2", "tester>=3"))
    (tmp_path / "demo.in").write_text("# Why.\n# pyproject: all\n")
    assert lock.faults() == []


def test_locks_that_pin_unlike_versions_are_named(project: Path, tmp_path: Path) -> None:
    (tmp_path / "other.in").write_text("quire-lock-test>1\n")
    pin_by_hand(tmp_path / "other.in", "1.5")
    assert lock.faults() == ["other.txt: quire-lock-test must be 1.0 as in demo.txt, got 1.5"]


def test_an_update_keeps_the_version_of_a_pin_that_still_fits(
    project: Path, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "index", "2.0")
    for least, kept in ((">=0.6", "1.0"), (">=1.5", "2.0")):
        project.write_text(re.sub(r">=[\d.]+(?=\"\]\n        all)", least, project.read_text()))
        assert lock.faults() != []
        lock.resolve(["demo"], update=True)
        assert f"quire-lock-test=={kept} " in (tmp_path / "demo.txt").read_text()
        assert lock.faults() == []


def test_constraints_have_public_versions_without_hashes(wheel: Path, tmp_path: Path) -> None:
    make_wheel(wheel.parent, "2.0+cpu")
    (tmp_path / "demo.in").write_text("# hashes: none\nquire-lock-test\n")
    lock.resolve(["demo"])
    assert (tmp_path / "demo.txt").read_text().splitlines()[2:] == ["quire-lock-test==2.0"]
    assert lock._fetched_by_default() == []


def test_what_is_installed_is_what_is_locked() -> None:
    unlocked = lock.ROOT / ".venv/.unlocked"
    if unlocked.exists():
        pytest.skip("tools/bootstrap.sh has found no wheels of the lock for this Python")
    pins = lock._pins(lock._source("dev").with_suffix(".txt").read_text())
    found = {
        canonicalize_name(each.metadata["Name"]): each.version.partition("+")[0]
        for each in distributions()
    }
    of_tests = [Requirement(line).name for line in wanted.wanted(["all", "dev", "build"])]
    names = {canonicalize_name(name) for name in of_tests} & found.keys()
    assert names
    assert {name: found[name] for name in names} == {name: pins[name] for name in names}


@pytest.mark.parametrize("package", ["llguidance", "tokenizers"])
def test_what_fixes_text_is_pinned_exactly_and_alike_everywhere(package: str) -> None:
    tables = tomllib.loads(wanted.PYPROJECT.read_text())["project"]["optional-dependencies"]
    asked = [Requirement(line) for lines in tables.values() for line in lines]
    (pin,) = {str(each.specifier) for each in asked if each.name == package}
    assert pin.startswith("==")
    locks = [source.with_suffix(".txt").read_text() for source in map(lock._source, lock._names())]
    assert {lock._pins(text).get(package, pin[2:]) for text in locks} == {pin[2:]}
    assert sum(package in lock._pins(text) for text in locks) >= 5
    assert version(package) == pin[2:]
