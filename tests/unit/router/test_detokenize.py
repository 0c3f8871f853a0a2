"""Pieces put together are the whole text; no piece ever ends within a character."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from router.text.detokenize import (
    CONTEXT_TOKENS,
    MAX_HELD_TOKENS,
    ByteFallbackDetokenizer,
    ByteLevelDetokenizer,
    Detokenizer,
    DetokenizerFactory,
    WindowDetokenizer,
)
from tests.fakes.small_tokenizers import byte_fallback, byte_level, metaspace

BYTE_LEVEL = byte_level()
BYTE_FALLBACK = byte_fallback()
METASPACE = metaspace()
TOKENIZERS = {"byte level": BYTE_LEVEL, "byte fallback": BYTE_FALLBACK, "metaspace": METASPACE}
FACTORIES = {name: DetokenizerFactory(t) for name, t in TOKENIZERS.items()}

any_text = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("aé中文😀👩\u200d👧\u0301🇩🇪\ufffd \n"),
    ),
    max_size=40,
)


def pieces(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


def beyond(tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool = True) -> str:
    """What decoding everything at once gives beyond the text of the prompt."""
    whole = tokenizer.decode(prompt + output, skip_special_tokens=skip)
    return whole[len(tokenizer.decode(prompt, skip_special_tokens=skip)) :]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("byte level", ByteLevelDetokenizer),
        ("byte fallback", ByteFallbackDetokenizer),
        ("metaspace", WindowDetokenizer),
    ],
)
def test_each_tokenizer_gets_its_kind(name: str, kind: type[Detokenizer]) -> None:
    assert type(FACTORIES[name].make([5], True)) is kind


def test_a_token_alone_reads_as_what_it_spells() -> None:
    for name, word in (("byte level", " list"), ("byte fallback", " list"), ("metaspace", "list")):
        tokenizer, factory = TOKENIZERS[name], FACTORIES[name]
        spelled = "".join(map(factory.token_text, tokenizer.encode("The list").ids))
        assert spelled.endswith(word), name
    half, *_ = BYTE_LEVEL.encode("\u20ac").ids
    assert FACTORIES["byte level"].token_text(half) == "\ufffd"
    assert FACTORIES["byte level"].token_text(10**6) == ""


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@given(text=any_text)
def test_pieces_of_a_text_are_that_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    prompt = tokenizer.encode("The list").ids
    # Encoded apart from the prompt, so that the first token may be any.
    output = tokenizer.encode(text).ids if text else []
    got = pieces(FACTORIES[name].make(prompt, True), output)
    assert "".join(got) == beyond(tokenizer, prompt, output)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in got), "half a character went out"


@given(text=any_text)
def test_window_gives_the_text_of_any_decoder(text: str) -> None:
    prompt = METASPACE.encode("The list").ids
    output = METASPACE.encode(text).ids
    got = pieces(FACTORIES["metaspace"].make(prompt, True), output)
    assert "".join(got) == beyond(METASPACE, prompt, output)


@given(
    output=st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=60),
    skip=st.booleans(),
)
def test_any_byte_level_tokens_equal_the_full_decode(output: list[int], skip: bool) -> None:
    prompt = BYTE_LEVEL.encode("x").ids
    got = pieces(FACTORIES["byte level"].make(prompt, skip), output)
    assert "".join(got) == beyond(BYTE_LEVEL, prompt, output, skip)


@given(text=any_text.filter(lambda text: text and "\ufffd" not in text), cut=st.integers(0, 100))
def test_a_prompt_may_end_within_a_character(text: str, cut: int) -> None:
    token_ids = BYTE_LEVEL.encode(text).ids
    cut = 1 + cut % len(token_ids)
    # The prompt's own text is its complete characters; all others are the output's.
    prompt_text = BYTE_LEVEL.decode(token_ids[:cut]).rstrip("\ufffd")
    detokenizer = FACTORIES["byte level"].make(token_ids[:cut], True)
    assert "".join(pieces(detokenizer, token_ids[cut:])) == text[len(prompt_text) :]


def naive_byte_fallback(tokens: list[str]) -> str:
    """The rule for bytes that spell no character: one U+FFFD for each of them."""
    text, run = "", b""

    def spelled(run: bytes) -> str:
        out = ""
        while run:
            for size in (1, 2, 3, 4):
                try:
                    out += run[:size].decode()
                    run = run[size:]
                    break
                except UnicodeDecodeError:
                    continue
            else:
                out += "\ufffd"
                run = run[1:]
        return out

    for token in tokens:
        if token.startswith("<0x"):
            run += bytes([int(token[3:5], 16)])
        else:
            text += spelled(run) + token.replace("▁", " ")
            run = b""
    return text + spelled(run)


@given(output=st.lists(st.integers(3, BYTE_FALLBACK.get_vocab_size() - 1), max_size=40))
def test_any_byte_fallback_tokens_follow_the_rule(output: list[int]) -> None:
    prompt = BYTE_FALLBACK.encode("x").ids
    got = pieces(FACTORIES["byte fallback"].make(prompt, True), output)
    tokens = [BYTE_FALLBACK.id_to_token(token_id) for token_id in output]
    assert "".join(got) == naive_byte_fallback(tokens)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_are_text_only_when_asked_for(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    end = tokenizer.token_to_id("</s>")
    prompt = tokenizer.encode("The list").ids
    output = [*tokenizer.encode("class").ids, end]
    shown = "".join(pieces(FACTORIES[name].make(prompt, False), output))
    hidden = "".join(pieces(FACTORIES[name].make(prompt, True), output))
    assert "</s>" in shown
    assert "</s>" not in hidden
    assert "class" in hidden


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
def test_tokens_beyond_the_tokenizer_have_no_text(name: str) -> None:
    beyond_it = TOKENIZERS[name].get_vocab_size() + 7
    assert pieces(FACTORIES[name].make([5], True), [beyond_it, beyond_it]) == ["", "", ""]


class CountedPieces(list[Any]):
    """The table of what each token is; counts how often it is read."""

    num_reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
def test_a_token_is_looked_up_once_and_at_most_half_a_character_is_held(name: str) -> None:
    token_ids = TOKENIZERS[name].encode("中文 append 😀 ").ids * 100
    detokenizer = FACTORIES[name].make([], True)
    assert isinstance(detokenizer, ByteLevelDetokenizer | ByteFallbackDetokenizer)
    table = detokenizer._pieces = CountedPieces(detokenizer._pieces)
    for token_id in token_ids:
        detokenizer.push(token_id)
        if isinstance(detokenizer, ByteLevelDetokenizer):
            held = detokenizer._utf8.getstate()[0]
        else:
            held = bytes(detokenizer._held)
        assert len(held) <= 3
    assert table.num_reads == len(token_ids)


def test_a_window_decodes_no_more_for_a_later_token() -> None:
    num_decoded: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        num_decoded.append(len(token_ids))
        return str(METASPACE.decode(list(token_ids)))

    detokenizer = WindowDetokenizer(decode, [5])
    token_ids = METASPACE.encode("中文 append 😀 ").ids * 100
    pieces(detokenizer, token_ids)
    assert max(num_decoded) <= CONTEXT_TOKENS + MAX_HELD_TOKENS
    assert len(num_decoded) <= 2 * (len(token_ids) + 1)
