"""Tokens to text, one token at a time, without ever giving out half a character.

Three kinds of tokenizer decoders exist in practice, and each has a way to continue in constant time
per token:

* byte-level BPE (GPT-2, OPT, Llama 3, Qwen): a token is a run of bytes, the text their UTF-8;
* byte fallback (Llama 2, Mistral, Gemma): a token is text, or one byte of a character the
  vocabulary lacks;
* anything else: decode a short window of the latest tokens, and again with the new one, and give
  out the difference.
"""

import codecs
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# An incomplete character is at most three bytes, and a token at least one.
CONTEXT_TOKENS = 4
# A character is at most four tokens; a window that still ends in half a character after this many
# holds invalid bytes.
MAX_HELD_TOKENS = 8


class Detokenizer(ABC):
    """Turns the output tokens of one request into text.

    The pieces from `push` and `flush`, put together, are what decoding context and tokens at once
    gives beyond the context's own text.
    """

    @abstractmethod
    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is certain now, never half a character."""

    @abstractmethod
    def flush(self) -> str:
        """Return what is held back when no token follows; half a character reads as U+FFFD."""


class DetokenizerFactory:
    """Makes detokenizers for one tokenizer; reads its vocabulary once."""

    def __init__(self, backend: "Backend"):
        vocabulary = backend.get_vocab(with_added_tokens=True)
        tokens = [""] * (1 + max(vocabulary.values(), default=-1))
        for token, token_id in vocabulary.items():
            tokens[token_id] = token
        special = {
            token_id
            for token_id, added in backend.get_added_tokens_decoder().items()
            if added.special
        }
        self._make, self._token_bytes = _maker(backend, tokens, special)
        self._token_texts: dict[int, str] = {}

    def make(
        self, context: Sequence[int], skip_special_tokens: bool, spaces: bool = True
    ) -> Detokenizer:
        """Return a detokenizer of the tokens that follow `context`.

        Args:
            context: tokens before the first, e.g. the prompt. Their text is not given out.
            skip_special_tokens: give special tokens no text.
            spaces: between special tokens and others, where the tokenizer's decoder puts them;
                those of byte-level and byte-fallback tokenizers put none.
        """
        return self._make(context[-CONTEXT_TOKENS:], skip_special_tokens, spaces)

    def token_text(self, token_id: int) -> str:
        """Return what a token reads as on its own, U+FFFD for part of a character."""
        text = self._token_texts.get(token_id)
        if text is None:
            alone = self._make((), False, True)
            text = self._token_texts[token_id] = alone.push(token_id) + alone.flush()
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to the UTF-8 of a text, with special tokens in it."""
        return self._token_bytes(token_id)


def _maker(
    backend: "Backend", tokens: Sequence[str], special: set[int]
) -> tuple[Callable[[Sequence[int], bool, bool], Detokenizer], Callable[[int], bytes]]:
    """Choose the kind of detokenizer and prepare its tables, with and without special tokens.

    Returns:
        What makes a detokenizer, and what returns the bytes of a token.
    """
    steps = _decoder_steps(backend)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        all_bytes = [_byte_level_bytes(token) for token in tokens]
        plain_bytes = [b"" if i in special else piece for i, piece in enumerate(all_bytes)]
        return (
            lambda context, skip, spaces: ByteLevelDetokenizer(
                plain_bytes if skip else all_bytes, context
            ),
            lambda token_id: all_bytes[token_id] if token_id < len(all_bytes) else b"",
        )
    replaced = _replacement(steps)
    if replaced is not None and kinds[1:] in (
        ["ByteFallback", "Fuse"],
        ["ByteFallback", "Fuse", "Strip"],
    ):
        # Strip takes the space in front of a whole text; what follows a context has none to lose.
        old, new = replaced
        texts: list[str | int] = [_byte_or_text(token, old, new) for token in tokens]
        plain: list[str | int | None] = [
            None if i in special else text for i, text in enumerate(texts)
        ]

        def bytes_of(token_id: int) -> bytes:
            piece = texts[token_id] if token_id < len(texts) else ""
            return piece.encode() if isinstance(piece, str) else bytes([piece])

        return (
            lambda context, skip, spaces: ByteFallbackDetokenizer(
                plain if skip else texts, context
            ),
            bytes_of,
        )

    def decode(token_ids: Iterable[int], skip: bool, spaces: bool) -> str:
        if skip or spaces:
            return str(backend.decode(list(token_ids), skip_special_tokens=skip))
        runs = itertools.groupby(token_ids, key=special.__contains__)
        return "".join(
            "".join(tokens[token_id] for token_id in run)
            if is_special
            else backend.decode(list(run), skip_special_tokens=False)
            for is_special, run in runs
        )

    def added_by(token_id: int) -> bytes:
        # Behind another: at the start of a text decoders leave a space out.
        twice, once = (decode([token_id] * number, False, True) for number in (2, 1))
        return twice[len(once) :].encode()

    return (
        lambda context, skip, spaces: WindowDetokenizer(
            lambda token_ids: decode(token_ids, skip, spaces), context
        ),
        added_by,
    )


def _decoder_steps(backend: "Backend") -> list[dict[str, Any]]:
    """Return the tokenizer's decoder as a list of steps, each with its "type"."""
    if backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def _replacement(steps: Sequence[dict[str, Any]]) -> tuple[str, str] | None:
    """Return what the first step replaces by what, if it replaces a plain string."""
    if not steps or steps[0]["type"] != "Replace" or "String" not in steps[0]["pattern"]:
        return None
    return steps[0]["pattern"]["String"], steps[0]["content"]


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of the byte-level alphabet.

    It is GPT-2's bytes_to_unicode, inverted: printable bytes stand for themselves, the others for
    the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


_BYTE_ALPHABET = _byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; with a character outside the alphabet it is text."""
    try:
        return bytes([_BYTE_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_or_text(token: str, old: str, new: str) -> str | int:
    """Return the byte that a token like "<0xE4>" stands for, or the text of any other."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            pass
    return token.replace(old, new)


@final
class ByteLevelDetokenizer(Detokenizer):
    """For tokenizers whose tokens are runs of bytes."""

    __slots__ = ("_pieces", "_utf8")

    def __init__(self, pieces: Sequence[bytes], context: Sequence[int]):
        """Continue after `context`.

        Args:
            pieces: bytes of each token; shared, not changed.
            context: tokens before the first; a character they leave incomplete is completed by the
                first ones.
        """
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in context:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """Take the next token; return the characters it completes."""
        # A model's vocabulary is often padded beyond its tokenizer's: such tokens have no text.
        if token_id >= len(self._pieces):
            return ""
        return self._utf8.decode(self._pieces[token_id])

    def flush(self) -> str:
        """Return U+FFFD for an incomplete character."""
        return self._utf8.decode(b"", final=True)


@final
class ByteFallbackDetokenizer(Detokenizer):
    """For tokenizers whose tokens are text, with single bytes for characters the vocabulary lacks.

    A byte that is no part of a character reads as one U+FFFD. The one difference from decoding
    everything at once: there, a bad byte also spoils the complete characters spelled by bytes next
    to it, which have been given out here.
    """

    __slots__ = ("_held", "_pieces")

    def __init__(self, pieces: Sequence[str | int | None], context: Sequence[int]):
        """Continue after `context`.

        Args:
            pieces: text or byte of each token, None for one that is skipped; shared, not changed.
            context: tokens before the first.
        """
        self._pieces = pieces
        self._held = bytearray()
        for token_id in context:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """Take the next token; return the text or the character it completes."""
        piece = self._pieces[token_id] if token_id < len(self._pieces) else None
        if piece is None:
            return ""
        if isinstance(piece, str):
            return self.flush() + piece
        self._held.append(piece)
        return self._take()

    def _take(self) -> str:
        """Return the held bytes as text, less those that may yet begin a character."""
        text = ""
        while self._held:
            try:
                text += self._held.decode()
                self._held.clear()
            except UnicodeDecodeError as error:
                if error.end == len(self._held) and error.reason == "unexpected end of data":
                    break
                text += REPLACEMENT * (error.end - error.start)
                del self._held[: error.end]
        return text

    def flush(self) -> str:
        """Return one U+FFFD for each byte of an incomplete character."""
        text = REPLACEMENT * len(self._held)
        self._held.clear()
        return text


@final
class WindowDetokenizer(Detokenizer):
    """For any tokenizer: the difference a token makes to the text of the few before it."""

    __slots__ = ("_decode", "_num_known", "_window")

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int]):
        """Continue after `context`.

        Args:
            decode: text of token ids, in time proportional to their number.
            context: tokens before the first.
        """
        self._decode = decode
        self._window = list(context)
        self._num_known = len(context)

    def push(self, token_id: int) -> str:
        """Take the next token; return the text it adds, nothing for half a character."""
        self._window.append(token_id)
        text = self._decode(self._window)
        num_held = len(self._window) - self._num_known
        if text.endswith(REPLACEMENT) and num_held < MAX_HELD_TOKENS:
            return ""
        return self._slide(text)

    def flush(self) -> str:
        """Return the text of the tokens held back."""
        return self._slide(self._decode(self._window))

    def _slide(self, text: str) -> str:
        """Return what is new in `text`, the window's; keep the window's end as context."""
        known = self._decode(self._window[: self._num_known])
        self._window = self._window[-CONTEXT_TOKENS:]
        self._num_known = len(self._window)
        return text[len(known) :]
