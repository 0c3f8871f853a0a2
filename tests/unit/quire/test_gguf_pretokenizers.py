"""Every name of tokenizer.ggml.pre divides texts as llama.cpp does, or as its models do."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from quire.contract.errors import ModelLoadError
from quire.gguf_pretokenizers import OF_CHARACTERS, PRE_TOKENIZERS, PreTokenizer
from quire.tokenizer_files import load_backend
from tests.gguf_splits import SEED, digest, stored, strings, vocabulary
from tests.unit.quire.test_gguf_tokenizer import write

# Where the models' own patterns, or engine, are not what llama.cpp runs: in strings like these.
_ASCII_CASES = "[^\\x00-\\x7f]"  # it knows small and capital letters of ASCII only
_NO_CASES = "[^\\x00-\\x7f]|[a-z][A-Z]"  # it has no small and capital letters
_OWN = {
    **dict.fromkeys(("tekken", "gpt-4o", "llama4", "kanana2", "talkie"), _ASCII_CASES),
    **dict.fromkeys(("minimax-m2", "granite-embed-multi-97m"), _ASCII_CASES),
    **dict.fromkeys(("youtu", "kimi-k2"), _NO_CASES),
    # Groups of three digits before a letter, and blanks before digits, are other words, too.
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _NO_CASES + r"|\d"),
    "afmoe": r"\s[\d½]",
    # To it, a blank that no range holds.
    **dict.fromkeys(("deepseek-llm", "deepseek-coder"), "\u3000"),
    "superbpe": "[٣½]",  # to it, no digit
}


@cache
def _values() -> dict[str, Any]:
    return vocabulary()


@cache
def _digests(row: PreTokenizer, path: Path) -> bytes:
    name = next(each for each, own in PRE_TOKENIZERS.items() if own == row)
    backend = load_backend(str(write(path, pre=name, add_bos_token=False, **_values())))
    return bytes(digest(each.ids) for each in backend.encode_batch(strings()))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "m.gguf"


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_ids_are_those_of_llama_cpp(name: str, path: Path) -> None:
    found, theirs = _digests(PRE_TOKENIZERS[name], path), stored()[name]
    texts = strings()
    assert len(found) == len(theirs) == len(texts)
    others = [text for text, a, b in zip(texts, found, theirs, strict=True) if a != b]
    unlike = [text for text in others if not re.search(_OWN.get(name, r"(?!)"), text)]
    assert not unlike, f"seed {SEED}: {len(unlike)} of {len(texts)}, as {unlike[:3]}"
    assert bool(others) == (name in _OWN)


def test_all_names_of_llama_cpp_are_known() -> None:
    assert set(stored()) == set(PRE_TOKENIZERS)


@pytest.mark.parametrize("name", OF_CHARACTERS)
def test_merges_of_characters_are_refused(name: str, path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"got '{name}', whose merges are of characters"):
        load_backend(str(write(path.with_name("other.gguf"), pre=name)))
