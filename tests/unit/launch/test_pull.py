"""`quire pull`, against a stand-in of the hub."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from launch import hub as pulls
from launch.cli.main import app
from tests.fakes.hub import COMMIT, NAME, Hub, serve_hub

WEIGHTS = bytes(range(256)) * 4096


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as hub:
        hub.files = {
            "config.json": b"{}",
            "tokenizer.json": b'{"model": 1}',
            "model.safetensors": WEIGHTS,
            "pytorch_model.bin": b"pickled",
            "modeling_tiny.py": b"import os",
            "onnx/model.safetensors": b"another format",
            "../tokenizer.json": b"out of the directory",
            "README.md": b"# tiny",
        }
        hub.large = {"model.safetensors"}
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
        yield hub


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["pull", *map(str, arguments)])


def refusal(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def test_only_files_that_are_read_come_and_the_commit_is_printed(hub: Hub, tmp_path: Path) -> None:
    directory = tmp_path / "models" / "tiny"
    result = run(NAME, directory)
    assert (result.exit_code, result.stdout) == (0, f"{NAME}@{COMMIT}\n")
    there = {str(each.relative_to(directory)) for each in directory.rglob("*")}
    assert there == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS
    # Again: what is there is checked and kept; what was changed comes again.
    hub.requested.clear()
    (directory / "config.json").write_bytes(b"[]")
    assert run(NAME, directory).exit_code == 0
    assert hub.requested == [("config.json", 0)]


def test_an_interrupted_download_goes_on_where_it_ended(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = {"model.safetensors": 300_000}
    assert "goes on where this ended" in refusal(NAME, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    hub.cut_after, hub.requested = {}, []
    assert run(NAME, tmp_path).exit_code == 0
    assert hub.requested == [("model.safetensors", 300_000)]
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert not (tmp_path / pulls.PARTS).exists()


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_what_has_another_hash_is_dropped(hub: Hub, tmp_path: Path, path: str) -> None:
    hub.lies[path] = bytes(reversed(hub.files[path]))
    assert f"{path}: must have the hash" in refusal(NAME, tmp_path)
    assert not (tmp_path / path).exists()
    hub.lies.clear()
    assert run(NAME, tmp_path).exit_code == 0
    assert (tmp_path / path).read_bytes() == hub.files[path]


def test_what_the_hub_refuses_is_one_line(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"must be at {hub.address}, got a/b" in refusal("a/b", tmp_path)
    assert f"revision: must be one of {NAME}, got v9" in refusal(f"{NAME}@v9", tmp_path)
    assert "model: must be OWNER/NAME" in refusal("a/b/c", tmp_path)
    hub.gated = True
    assert "is given on request: ask at" in refusal(NAME, tmp_path)
    hub.gated = False
    hub.files["model.Q4.gguf"] = hub.files.pop("model.safetensors")
    assert "gguf: must be given, one of those" in refusal(NAME, tmp_path)
    assert "must match one file" in refusal(NAME, tmp_path, "--gguf", "*Q8*")
    assert run(NAME, tmp_path / "gguf", "--gguf", "*Q4.gguf").exit_code == 0
    assert (tmp_path / "gguf" / "model.Q4.gguf").read_bytes() == WEIGHTS
    del hub.files["model.Q4.gguf"]
    assert "must have weights in safetensors" in refusal(NAME, tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1: cannot be reached" in refusal(NAME, tmp_path)


def test_a_full_disk_is_one_line(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert "directory: must have" in refusal(NAME, tmp_path)
    assert hub.requested == []
    monkeypatch.undo()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    assert "the disk is full" in refusal(NAME, tmp_path)
