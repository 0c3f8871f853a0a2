"""Text ids: of the files that make tokens of text, and of nothing else."""

import shutil
from pathlib import Path

import pytest

from launch.cluster.supervisor import embedded_model
from quire import text_id as module
from quire.text_id import text_id


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shutil.copytree(embedded_model(), tmp_path / "model")
    return tmp_path / "model"


def test_it_is_of_the_contents_wherever_they_are(model: Path) -> None:
    assert text_id(model) == text_id(embedded_model())
    assert len(bytes.fromhex(text_id(model))) == 16


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "tokenizer.model",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "additional_chat_templates/tools.jinja",
    ],
)
def test_every_file_of_tokenizer_and_template_is_in_it(name: str, model: Path) -> None:
    seen = {text_id(model)}
    path = model / name
    path.parent.mkdir(exist_ok=True)
    for more in (b" ", b"\n"):
        path.write_bytes((path.read_bytes() if path.exists() else b"") + more)
        seen.add(text_id(model))
    assert len(seen) == 3


def test_names_are_in_it(model: Path) -> None:
    (model / "vocab.json").write_text("{}")
    before = text_id(model)
    (model / "vocab.json").rename(model / "vocab.txt")
    assert text_id(model) != before


@pytest.mark.parametrize("reader", ["grammar_version", "_tokenizers_version"])
def test_the_version_of_what_reads_it_is_in_it(
    reader: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = text_id(model)
    monkeypatch.setattr(module, reader, lambda: "0.1")
    assert text_id(model) != before


def test_weights_and_configuration_are_not_in_it(model: Path) -> None:
    before = text_id(model)
    for name in ("config.json", "model.safetensors", "README.md"):
        (model / name).write_bytes(b"other")
    assert text_id(model) == before


def test_the_version_is_in_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = text_id(model)
    monkeypatch.setattr(module, "TEXT_VERSION", module.TEXT_VERSION + 1)
    assert text_id(model) != before


def test_a_tokenizer_has_the_id_of_this_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is that of another version: prompts, text, its end or masks have changed."""
    monkeypatch.setattr(module, "grammar_version", lambda: "0.1")
    monkeypatch.setattr(module, "_tokenizers_version", lambda: "0.2")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert (module.TEXT_VERSION, text_id(tmp_path)) == (5, "975ec4ac5bb694c16802071d3871522f")


def test_a_directory_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert text_id(tmp_path) == ""
