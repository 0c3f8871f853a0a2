"""Tokenizers of GGUF files, which hold no tokenizer.json."""

from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, pre_tokenizers

from launch.cluster.config import embedded_model
from quire.contract.errors import ModelLoadError
from quire.gguf_tokenizer import load_gguf_tokenizer
from quire.text_id import text_id
from quire.tokenizer_files import load_backend
from tests.gguf_files import tokenizer_metadata

TEXT = "def f(x):\n    return  x + 1  # naïve 中文\n<|endoftext|>tail"


def write(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """Write a file of the demo model's tokenizer; None removes a key of tokenizer.ggml."""
    values = tokenizer_metadata(embedded_model())
    values |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in values.items():
        if value is not None:
            sub_type = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value), sub_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_ids_are_those_of_tokenizer_json(tmp_path: Path) -> None:
    theirs = Tokenizer.from_file(str(embedded_model() / "tokenizer.json"))
    ours = load_backend(str(write(tmp_path / "m.gguf")))
    ids = theirs.encode(TEXT).ids
    assert ours.encode(TEXT).ids == ids
    assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(
        ids, skip_special_tokens=False
    )


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({}, False),
        ({"add_bos_token": True}, True),
        ({"pre": "llama-bpe"}, True),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
        ({"pre": "chameleon"}, True),
        ({"pre": "jina-v5-nano"}, True),
        ({"pre": "dbrx"}, False),
    ],
)
def test_texts_begin_as_the_file_and_llama_cpp_have_it(
    changes: dict[str, Any], begins: bool, tmp_path: Path
) -> None:
    ids = load_backend(str(write(tmp_path / "m.gguf", **changes))).encode("list").ids
    assert (ids[0] == 0) == begins


def test_the_chat_template_is_the_files(tmp_path: Path) -> None:
    tokenizer = load_gguf_tokenizer(write(tmp_path / "m.gguf"))
    messages = [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "xy"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert"}, r"tokenizer.ggml.model: must be llama or gpt2, got 'bert'"),
        ({"model": None}, r"tokenizer.ggml.model: must be llama or gpt2, got None"),
        ({"pre": "strange"}, r"tokenizer.ggml.pre: must be one of default, .*, got 'strange'"),
        ({"pre": None}, r"tokenizer.ggml.pre: must be one of default, .*, got None"),
        ({"bos_token_id": -1}, r"tokenizer.ggml.bos_token_id: must be one of \d+ tokens, got -1"),
        ({"eos_token_id": 9**6}, "tokenizer.ggml.eos_token_id: must be one of .*, got 531441"),
        ({"tokens": None, "bos_token_id": None}, "cannot load the tokenizer of"),
    ],
)
def test_others_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=words):
        load_backend(str(write(tmp_path / "m.gguf", **changes)))


def test_text_ids_are_of_tokenizer_and_template(tmp_path: Path) -> None:
    plain = write(tmp_path / "m.gguf")
    assert text_id(plain) == text_id(write(tmp_path / "n.gguf"))
    assert text_id(plain) != text_id(write(tmp_path / "o.gguf", add_bos_token=True))


BEGIN, THINK = "<\uff5cbegin▁of▁sentence\uff5c>", "<\uff5cthink\uff5c>"


def test_special_tokens_of_any_characters_keep_their_ids(tmp_path: Path) -> None:
    values = tokenizer_metadata(embedded_model())
    count = len(values["tokenizer.ggml.tokens"])
    changes: dict[str, Any] = {
        "tokens": [*values["tokenizer.ggml.tokens"], BEGIN, THINK],
        "token_type": [*values["tokenizer.ggml.token_type"], 3, 4],
        "bos_token_id": count,
        "pre": "llama-bpe",
    }
    tokenizer = load_gguf_tokenizer(write(tmp_path / "m.gguf", **changes))
    assert (tokenizer.bos_token_id, len(tokenizer)) == (count, count + 2)
    ids = tokenizer.backend_tokenizer.encode(f"list{BEGIN}{THINK}").ids
    assert (ids[0], ids[-2:]) == (count, [count, count + 1])
    assert tokenizer.backend_tokenizer.decode(ids) == f"list{THINK}"


def test_words_that_are_tokens_are_not_merged_where_llama_cpp_does_not(tmp_path: Path) -> None:
    values = tokenizer_metadata(embedded_model())
    word = "zqzqx"
    tokens = [*values["tokenizer.ggml.tokens"], word]
    types = [*values["tokenizer.ggml.token_type"], 1]
    for pre, whole in (("llama-bpe", True), ("tekken", True), ("qwen2", False)):
        changes: dict[str, Any] = {
            "pre": pre,
            "tokens": tokens,
            "token_type": types,
            "add_bos_token": False,
        }
        ids = load_backend(str(write(tmp_path / "m.gguf", **changes))).encode(word).ids
        assert (ids == [len(tokens) - 1]) == whole


def test_smollm_divides_numbers_into_digits(tmp_path: Path) -> None:
    backend = load_backend(str(write(tmp_path / "m.gguf", pre="smollm")))
    theirs = Tokenizer.from_file(str(embedded_model() / "tokenizer.json"))
    # As SmolLM2's tokenizer.json has it.
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    for text in (TEXT, "in 1999,  x = 10 ** 200\r\n\n", "\u0663\u0664\u00bd they're 12\u4e2d34"):
        assert backend.encode(text).ids == theirs.encode(text).ids
        words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        assert words == [word for word, _ in theirs.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_the_space_before_a_text_is_as_the_file_has_it(architecture: str, tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁a"]
    changes: dict[str, Any] = {
        "model": "llama",
        "pre": None,
        "tokens": tokens,
        "scores": [0.0, 0.0, 0.0, -1.0, -2.0, -3.0],
        "token_type": [2, 3, 3, 1, 1, 1],
        "merges": None,
        "bos_token_id": 1,
        "add_bos_token": False,
    }
    for prefix, ids in ((None, [5]), (True, [5]), (False, [4])):
        path = write(tmp_path / "m.gguf", architecture, **changes, add_space_prefix=prefix)
        backend = load_backend(str(path))
        assert backend.encode("a").ids == ids
        assert backend.decode(ids) == "a"
        assert backend.get_vocab_size() == len(tokens)
    assert backend.decode([5]) == " a"
