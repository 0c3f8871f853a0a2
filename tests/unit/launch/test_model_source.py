"""Where the files of a model come from: another tokenizer, a changed config."""

import json
from pathlib import Path

import pytest

from launch.cli.options import model_path
from launch.cluster.config import embedded_model
from launch.llm import LLM
from launch.model_source import ModelSource
from quire.contract.errors import ConfigError
from quire.text_id import text_id


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A directory with another tokenizer and chat template, and weights of its own."""
    directory = tmp_path / "other"
    directory.mkdir()
    (directory / "tokenizer.json").write_text('{"other": true}')
    (directory / "chat_template.jinja").write_text("other")
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"other")
    return directory


def test_a_model_is_itself_where_nothing_is_asked_for() -> None:
    model = embedded_model()
    assert ModelSource().path_of(model) == model
    assert ModelSource(tokenizer=str(model)).path_of(model) == model


def test_a_config_has_other_values_and_all_else_is_linked() -> None:
    model = embedded_model()
    source = ModelSource(hf_overrides='{"rope_theta": 5.0, "new": {"a": 1}}')

    path = source.path_of(model)

    config, before = (json.loads((each / "config.json").read_text()) for each in (path, model))
    assert config == {**before, "rope_theta": 5.0, "new": {"a": 1}}
    assert path.name == model.name
    others = {each.name for each in model.iterdir()} - {"config.json"}
    assert {each.name for each in path.iterdir()} == others | {"config.json"}
    assert all((path / name).resolve() == (model / name).resolve() for name in others)
    assert text_id(path) == text_id(model)
    # The same again, and another for other values.
    assert source.path_of(model) == path
    assert ModelSource(hf_overrides='{"rope_theta": 6.0}').path_of(model) != path


def test_values_of_a_config_within_count_one_by_one(tmp_path: Path) -> None:
    inner = {"text_config": {"a": 1, "b": 2}, "quantization_config": {"bits": 4}}
    inner["scaling"] = {"c": 1}
    (tmp_path / "config.json").write_text(json.dumps(inner))
    overrides = {"text_config": {"b": 3}, "quantization_config": {"x": 1}, "scaling": {"d": 2}}
    path = ModelSource(hf_overrides=json.dumps(overrides)).path_of(tmp_path)
    assert json.loads((path / "config.json").read_text()) == {
        "text_config": {"a": 1, "b": 3},
        "quantization_config": {"x": 1},
        "scaling": {"d": 2},
    }


def test_a_tokenizer_comes_with_its_template_and_nothing_else(other: Path) -> None:
    model = embedded_model()
    path = ModelSource(tokenizer=str(other)).path_of(model)
    assert (path / "tokenizer.json").read_text() == '{"other": true}'
    assert (path / "chat_template.jinja").read_text() == "other"
    assert not (path / "tokenizer_config.json").exists()
    for name in ("config.json", "model.safetensors"):
        assert (path / name).read_bytes() == (model / name).read_bytes()
    assert text_id(path) != text_id(model)


@pytest.mark.parametrize("text", ["[]", "{", "5"])
def test_overrides_are_an_object(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^hf_overrides: must be a JSON object, got "):
        ModelSource(hf_overrides=text).path_of(embedded_model())


def test_a_file_has_its_own(tmp_path: Path, other: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"")
    for source, name in (
        (ModelSource(hf_overrides='{"a": 1}'), "hf_overrides"),
        (ModelSource(tokenizer=str(other)), "tokenizer"),
    ):
        with pytest.raises(ConfigError, match=rf"^{name}: must be absent unless the model is a"):
            source.path_of(gguf)
    with pytest.raises(ConfigError, match=r"^tokenizer: must be a directory that exists, or "):
        ModelSource(tokenizer="/no").path_of(embedded_model())
    with pytest.raises(ConfigError, match=r"^tokenizer_revision: must be given with tokenizer"):
        ModelSource(tokenizer_revision="main").path_of(embedded_model())


def test_a_cache_that_cannot_be_written_is_one_line(cache: Path) -> None:
    cache.write_text("no directory")
    with pytest.raises(ConfigError, match=r"^XDG_CACHE_HOME: must be writable: "):
        ModelSource(hf_overrides='{"a": 1}').path_of(embedded_model())


def test_an_empty_name_is_no_directory() -> None:
    with pytest.raises(ConfigError, match=r"^model: must not be empty, got ''$"):
        ModelSource().path_of("")
    with pytest.raises(ConfigError, match=r"^model: must not be empty, got ''$"):
        LLM(model="")
    with pytest.raises(ConfigError, match=r"^tokenizer: must not be empty, got ''$"):
        ModelSource(tokenizer="").path_of(embedded_model())


def test_manifests_leave_the_model_of_a_service_empty(tmp_path: Path) -> None:
    assert model_path("") == model_path(None) == embedded_model()
    assert model_path(str(tmp_path)) == tmp_path
