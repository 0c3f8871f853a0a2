"""Defaults of sampling parameters from a model's generation_config.json."""

import json
from pathlib import Path

import pytest

from quire.contract.errors import ConfigError
from router.generation_config import load_generation_defaults


def model_with(directory: Path, content: object) -> Path:
    (directory / "generation_config.json").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    return directory


def test_the_file_of_the_model_has_the_defaults(tmp_path: Path) -> None:
    config = {
        "temperature": 0.6,
        "top_k": 20.0,
        "top_p": 0.95,
        "repetition_penalty": None,
        "min_p": 0.0,
        "max_new_tokens": 100,
        "do_sample": False,
        "eos_token_id": [1, 2],
    }
    model = model_with(tmp_path, config)

    found = load_generation_defaults(model, "auto", {})

    expected = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "max_tokens": 100}
    assert found == expected
    assert type(found["top_k"]) is int
    assert load_generation_defaults(model, "vllm", {}) == {}
    changed = load_generation_defaults(model, "auto", {"temperature": 0.1, "max_new_tokens": 7})
    assert changed == {**expected, "temperature": 0.1, "max_tokens": 7}
    for off in (0, -1, None):
        changed = load_generation_defaults(model, "auto", {"top_k": off})
        assert changed == {name: value for name, value in expected.items() if name != "top_k"}
    other = tmp_path / "other"
    other.mkdir()
    assert load_generation_defaults(other, "auto", {}) == {}
    assert load_generation_defaults(other, str(model), {}) == expected


def test_a_model_without_the_file_has_none(tmp_path: Path) -> None:
    assert load_generation_defaults(tmp_path, "auto", {}) == {}
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"")
    assert load_generation_defaults(gguf, "auto", {}) == {}
    with pytest.raises(ConfigError, match=r"^generation_config: .*generation_config.json must be"):
        load_generation_defaults(tmp_path, str(tmp_path), {})


@pytest.mark.parametrize("off", [0, -1])
def test_a_filter_that_is_off_there_is_no_default(tmp_path: Path, off: int) -> None:
    assert load_generation_defaults(model_with(tmp_path, {"top_k": off}), "auto", {}) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"temperature": -1}, "temperature: must be in"),
        ({"top_k": 2.5}, "top_k must be an integer, got 2.5"),
        ({"top_p": "high"}, "top_p must be a number, got 'high'"),
        ({"min_p": True}, "min_p must be a number, got True"),
        ("[]", "must be a JSON object"),
        ("{", "must be a JSON object"),
    ],
)
def test_what_cannot_be_a_default_is_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^generation_config: .*{message}"):
        load_generation_defaults(model_with(tmp_path, content), "auto", {})


def test_an_override_has_a_name_that_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^override_generation_config: must have of .* got x$"):
        load_generation_defaults(tmp_path, "auto", {"x": 1})
