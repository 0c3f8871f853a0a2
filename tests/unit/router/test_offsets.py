"""Where tokens begin in a prompt's text, and what bytes each adds to it."""

import os
import random

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import NFC, Lowercase
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing

from router.text.detokenize import DetokenizerFactory
from router.text.tokenize import Tokenizer
from tests.fakes.small_tokenizers import byte_fallback, byte_level, metaspace

SEED = int(os.environ.get("SEED", random.randrange(2**32)))
WORDS = ("The", " list", "中文", "😀", " é", "\n", "  ", "<s>", "methods", " 中")
KINDS = {"byte level": byte_level, "byte fallback": byte_fallback, "metaspace": metaspace}


def with_bounds(backend: Backend, trims: bool = False) -> Backend:
    """Add what models expect around a text: special tokens that it does not have."""
    first, last = ((each, backend.token_to_id(each)) for each in ("<s>", "</s>"))
    around = TemplateProcessing(single="<s> $A </s>", special_tokens=[first, last])
    # As RoBERTa's, whose spans leave spaces out.
    backend.post_processor = Sequence([ByteLevel(trim_offsets=True), around]) if trims else around
    return backend


@pytest.mark.parametrize("trims", [False, True])
async def test_a_token_of_a_prompt_begins_where_its_bytes_do(trims: bool) -> None:
    """Of byte-level tokens, whose bytes are the text: those of special ones are not in it."""
    tokenizer = Tokenizer(with_bounds(byte_level(), trims), num_threads=1)
    chance = random.Random(SEED)
    for _ in range(50):
        text = "".join(chance.choices(WORDS[:7], k=chance.randrange(1, 12)))
        token_ids = await tokenizer.encode(text)
        expected, sofar = [], b""
        for place, token_id in enumerate(token_ids):
            expected.append(len(sofar.decode(errors="ignore")))
            is_added = place in (0, len(token_ids) - 1)
            sofar += b"" if is_added else tokenizer.token_bytes(token_id)
        assert sofar.decode() == text
        found = await tokenizer.offsets(text, token_ids, True)
        assert list(found) == expected, f"SEED={SEED}: {text!r}"
    tokenizer.close()


async def test_special_tokens_that_a_text_has_take_their_room() -> None:
    tokenizer = Tokenizer(with_bounds(byte_level()), num_threads=1)
    text = "<s>The"
    token_ids = await tokenizer.encode(text)
    assert list(await tokenizer.offsets(text, token_ids, True)) == [0, 0, 3, 6]
    tokenizer.close()


async def test_a_text_that_the_tokenizer_changes_has_its_own_places() -> None:
    backend = byte_level()
    backend.normalizer = Normalizers([Lowercase(), NFC()])
    tokenizer = Tokenizer(with_bounds(backend), num_threads=1)
    text = "THE e\u0301\u4e2d LIST"
    token_ids = await tokenizer.encode(text)
    offsets = list(await tokenizer.offsets(text, token_ids, True))
    assert offsets == sorted(offsets)
    texts = list(map(tokenizer.token_text, token_ids))
    assert text[offsets[texts.index(" list")] :] == " LIST"
    assert offsets[-1] == len(text)
    tokenizer.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skips", [False, True])
async def test_ids_begin_where_their_text_does(kind: str, skips: bool) -> None:
    tokenizer = Tokenizer(KINDS[kind](), num_threads=1)
    first = (await tokenizer.encode("The list"))[0]
    special = tokenizer.added_tokens["</s>"]
    token_ids = [special, first, special, first, first]
    text = await tokenizer.decode(token_ids, skips)
    offsets = list(await tokenizer.offsets(text, token_ids, skips))
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    marked = len("</s>") if not skips else 0
    assert text[offsets[1] :].lstrip().startswith(tokenizer.token_text(first).strip())
    assert offsets[1] == marked
    tokenizer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_tokens_are_what_they_add(kind: str) -> None:
    backend = KINDS[kind]()
    factory = DetokenizerFactory(backend)
    chance = random.Random(SEED)
    for _ in range(50):
        text = "x" + "".join(chance.choices([w for w in WORDS if w != "<s>"], k=9))
        first, *rest = backend.encode(text).ids
        detokenizer = factory.make([first], False)
        shown = "".join([*map(detokenizer.push, rest), detokenizer.flush()])
        whole = b"".join(map(factory.token_bytes, rest))
        assert whole.decode() == shown, f"SEED={SEED}: {text!r}"
    assert factory.token_bytes(10**6) == b""
