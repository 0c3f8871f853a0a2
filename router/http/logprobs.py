"""Log-probabilities in the shapes of OpenAI's and vLLM's answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quire.contract.outputs import TokenLogprobs

# JSON knows no infinity; vLLM's clients know this.
LOWEST = -9999.0


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can hold; one that is no number is the lowest, too."""
    return logprob if logprob > LOWEST else LOWEST


def named_by_ids(position: TokenLogprobs) -> TokenLogprobs:
    """Return a position whose tokens have vLLM's names of their ids for texts."""
    return replace(position, texts=tuple(map(id_name, position.token_ids)))


def id_name(token_id: int) -> str:
    """Return vLLM's name of a token's id."""
    return f"token_id:{token_id}"


def completion_logprobs(
    texts: Sequence[str],
    positions: Sequence[TokenLogprobs | None],
    offsets: Sequence[int],
    num_top: int,
) -> dict[str, Any]:
    """Return the `logprobs` of a choice of /v1/completions.

    Args:
        texts: what each token reads as.
        positions: log-probabilities at each; None for the first token of a prompt.
        offsets: where each begins in the text, in characters.
        num_top: how many of the most probable tokens to show, the chosen one beside them.
    """
    return {
        "text_offset": list(offsets),
        "token_logprobs": [each and finite(each.logprobs[0]) for each in positions],
        "tokens": list(texts),
        "top_logprobs": [each and _top(each, num_top) for each in positions],
    }


def _top(position: TokenLogprobs, num_top: int) -> dict[str, float]:
    """Return the most probable tokens, best first, and the chosen one, which has its text.

    Of others that read alike, such as parts of characters, all but one have vLLM's name of an id.
    """
    names = {position.token_ids[0]: position.texts[0]}
    found: dict[str, float] = {}
    best = range(1, min(1 + num_top, len(position.texts)))
    for place in (*best, 0):
        token_id, text = position.token_ids[place], position.texts[place]
        if token_id not in names:
            is_taken = text in names.values()
            names[token_id] = id_name(token_id) if is_taken else text
        found.setdefault(names[token_id], finite(position.logprobs[place]))
    return found


def chat_logprob(
    position: TokenLogprobs, num_top: int, token_bytes: Callable[[int], bytes]
) -> dict[str, Any]:
    """Return the log-probabilities at a position in the shape of OpenAI's chats.

    Args:
        position: the chosen token, then the most probable ones.
        num_top: how many of the most probable ones to show.
        token_bytes: returns a token's own, which may be part of a character.
    """
    entries = [
        {"token": text, "logprob": finite(logprob), "bytes": list(token_bytes(token_id))}
        for token_id, text, logprob in zip(
            position.token_ids, position.texts, position.logprobs, strict=True
        )
    ]
    return {**entries[0], "top_logprobs": entries[1 : 1 + num_top]}


def prompt_logprobs(
    positions: Sequence[TokenLogprobs],
) -> list[dict[str, dict[str, Any]] | None]:
    """Return vLLM's `prompt_logprobs`: of each position the tokens by id, null for the first."""
    return [None, *map(_by_token, positions)]


def _by_token(position: TokenLogprobs) -> dict[str, dict[str, Any]]:
    entries = zip(position.token_ids, position.logprobs, position.texts, strict=True)
    found: dict[str, dict[str, Any]] = {}
    for place, (token_id, logprob, text) in enumerate(entries):
        rank = place or position.sampled_rank
        entry = {"logprob": finite(logprob), "rank": rank, "decoded_token": text}
        found.setdefault(str(token_id), entry)
    return found
