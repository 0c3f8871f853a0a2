"""Tokenizers read directly are those that transformers would make of the same files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from launch.cluster.supervisor import ClusterConfig, embedded_model
from quire import tokenizer_files
from quire.contract.errors import ConfigError, ModelLoadError
from tests.fakes import small_tokenizers

PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}


def write(directory: Path, tokenizer: Tokenizer, config: dict[str, Any]) -> Path:
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def by_transformers(directory: Path) -> str:
    text: str = AutoTokenizer.from_pretrained(
        str(directory), local_files_only=True
    ).backend_tokenizer.to_str()
    return text


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("special", [{}, {"eos_token": "</s>", "bos_token": "<s>"}])
def test_plain_files_are_read_directly(name: str, special: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, getattr(small_tokenizers, name)(), {**PLAIN, **special})
    plain = tokenizer_files._load_plain(tmp_path)
    assert plain is not None
    ours, theirs = json.loads(plain.to_str()), json.loads(by_transformers(tmp_path))
    # In the place of none, transformers puts one that adds nothing.
    assert ours.pop("post_processor") is None
    assert theirs.pop("post_processor")["special_tokens"] == {}
    assert ours == theirs
    other = Tokenizer.from_str(by_transformers(tmp_path))
    for text in (*small_tokenizers.CORPUS, "</s> in a text <s>", ""):
        assert plain.encode(text).ids == other.encode(text).ids


def test_a_byte_order_mark_is_no_json(tmp_path: Path) -> None:
    write(tmp_path, small_tokenizers.byte_level(), PLAIN)
    for path in (tmp_path / "tokenizer_config.json", tmp_path / "tokenizer.json"):
        path.write_text(path.read_text("utf-8"), "utf-8-sig")
    assert tokenizer_files._load_plain(tmp_path) is not None


def test_the_embedded_model_needs_no_transformers() -> None:
    """Seconds of every router's start."""
    program = (
        "import sys; from quire.tokenizer_files import load_backend; "
        f"print(load_backend({str(embedded_model())!r}).encode('The list').ids); "
        "sys.exit('transformers' in sys.modules or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = AutoTokenizer.from_pretrained(str(embedded_model())).encode("The list")
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "LlamaTokenizer"},
        {**PLAIN, "add_bos_token": True, "bos_token": "<s>"},
        {**PLAIN, "eos_token": "<|end|>"},
        {**PLAIN, "eos_token": "list"},
        {**PLAIN, "additional_special_tokens": ["<|tool|>"]},
        {**PLAIN, "added_tokens_decoder": {"481": {"content": "<|x|>", "special": True}}},
    ],
    ids=str,
)
def test_anything_else_is_left_to_transformers(config: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, small_tokenizers.byte_level(), config)
    assert tokenizer_files._load_plain(tmp_path) is None
    assert tokenizer_files.load_backend(str(tmp_path)).to_str() == by_transformers(tmp_path)


def test_where_transformers_is_missing_the_refusal_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, small_tokenizers.byte_level(), {"tokenizer_class": "LlamaTokenizer"})
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelLoadError, match="needs transformers, which is not installed here"):
        tokenizer_files.load_backend(str(tmp_path))


def test_a_broken_file_is_refused_in_one_line(tmp_path: Path) -> None:
    write(tmp_path, small_tokenizers.byte_level(), PLAIN)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match="cannot load the tokenizer of"):
        tokenizer_files.load_backend(str(tmp_path))


def test_a_directory_without_a_tokenizer_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by transformers, whose imports take seconds, nor where everything has started."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelLoadError) as refused:
        tokenizer_files.load_backend(str(tmp_path))
    assert refused.value.message == (
        f"tokenizer.json: must be in {tmp_path}, or else tokenizer.model or vocab.json, got none: "
        "copy the tokenizer's files of the model that this one was made from"
    )
    with pytest.raises(ConfigError) as refused_too:
        ClusterConfig(model=tmp_path)
    assert refused_too.value.message == refused.value.message
    (tmp_path / "vocab.json").write_text("{}")
    ClusterConfig(model=tmp_path)


def test_what_transformers_says_is_not_cut_at_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(ModelLoadError) as refused:
        tokenizer_files.load_backend(str(tmp_path))
    assert "\n" not in refused.value.message
    assert not refused.value.message.endswith(":")
