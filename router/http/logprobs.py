"""Log-probabilities in the shapes of OpenAI's and vLLM's answers."""

from collections.abc import Sequence
from typing import Any

from quire.contract.outputs import TokenLogprobs

# JSON knows no infinity; vLLM's clients know this.
LOWEST = -9999.0


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can hold."""
    return max(logprob, LOWEST)


def completion_logprobs(
    texts: Sequence[str], positions: Sequence[TokenLogprobs | None], offset: int, num_top: int
) -> dict[str, Any]:
    """Return the `logprobs` of a choice of /v1/completions.

    Args:
        texts: what each token reads as.
        positions: log-probabilities at each; None for the first token of a prompt.
        offset: characters of the text before the first token.
        num_top: how many of the most probable tokens to show, the chosen one beside them.
    """
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "text_offset": offsets,
        "token_logprobs": [each and finite(each.logprobs[0]) for each in positions],
        "tokens": list(texts),
        "top_logprobs": [each and _top(each, num_top) for each in positions],
    }


def _top(position: TokenLogprobs, num_top: int) -> dict[str, float]:
    """Return the most probable tokens, best first, and the chosen one; of equal texts the best."""
    found: dict[str, float] = {}
    best = range(1, min(1 + num_top, len(position.texts)))
    for place in (*best, 0):
        found.setdefault(position.texts[place], finite(position.logprobs[place]))
    return found


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
