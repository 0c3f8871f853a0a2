"""Where tokens begin in a text, in characters: within one, where that begins."""

from collections.abc import Iterable, Sequence
from itertools import accumulate


def encoded_offsets(
    text: str, spans: Sequence[tuple[int, int]], token_texts: Iterable[str]
) -> list[int]:
    """Return where the tokens that a tokenizer made of a text begin in it.

    Args:
        text: that was encoded.
        spans: of it, one for each token; empty for those that were added around it.
        token_texts: what each token reads as on its own.
    """
    offsets = []
    end = 0
    for (first, last), token_text in zip(spans, token_texts, strict=True):
        begin = first
        if first == last:
            begin = end
        elif text[end:first].isspace() and not text[first].isspace():
            # Some tokenizers leave a token's space out of its span.
            num_spaces = len(token_text) - len(token_text.lstrip())
            begin = max(end, first - num_spaces)
        offsets.append(begin)
        end = max(end, last)
    return offsets


def pieces_offsets(text: str, pieces: Sequence[str]) -> list[int]:
    """Return where tokens begin in the text that they are decoded to.

    Args:
        text: of all of them.
        pieces: that each adds to the text of those before it.
    """
    *offsets, end = accumulate(map(len, pieces), initial=0)
    # At its start a decoder may leave out a space.
    num_left_out = end - len(text) if "".join(pieces).endswith(text) else 0
    return [min(max(0, each - num_left_out), len(text)) for each in offsets]
