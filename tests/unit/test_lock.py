"""tools/lock.py: what a lock leaves out, and that only what it pins is fetched."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from tools import lock


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
