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


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that pip finds, and no other."""
    path = tmp_path / "index" / "quire_lock_test-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "quire_lock_test-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("quire_lock_test.py", "")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: quire-lock-test\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    (tmp_path / "demo.in").write_text("quire-lock-test\n")
    monkeypatch.setattr(lock, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(lock, "WHEELHOUSE", tmp_path / "wheelhouse")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path


def test_what_is_resolved_is_what_is_fetched(wheel: Path, tmp_path: Path) -> None:
    lock.resolve("demo")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (
        f"quire-lock-test==1.0 \\\n    --hash=sha256:{digest}\n"
        in (tmp_path / "demo.txt").read_text()
    )
    lock.fetch("demo")
    assert (tmp_path / "wheelhouse/demo" / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_wheel_that_is_not_the_one_that_was_pinned_is_refused(wheel: Path) -> None:
    lock.resolve("demo")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("quire_lock_test_evil.py", "")
    with pytest.raises(SystemExit, match=r"demo\.txt cannot be fetched"):
        lock.fetch("demo")


def test_what_is_there_is_not_fetched_again(wheel: Path, tmp_path: Path) -> None:
    lock.resolve("demo")
    lock.fetch("demo")
    wheel.unlink()
    lock.fetch("demo")
    (tmp_path / "demo.txt").write_text("quire-lock-test==2.0 --hash=sha256:" + "0" * 64)
    with pytest.raises(SystemExit, match="cannot be fetched"):
        lock.fetch("demo")
