"""What comes at once where a client comes back to a request, cut into what others can wait for."""

from collections.abc import Iterator
from dataclasses import replace

from quire.contract.outputs import Delta, Event

MAX_TOKENS = 256


def in_slices(event: Event, max_tokens: int = MAX_TOKENS) -> Iterator[Event]:
    """Yield an event, or the deltas that one of many tokens is.

    Args:
        event: where its tokens' texts are known, it may be cut between them.
        max_tokens: of one delta.
    """
    if (
        not isinstance(event, Delta)
        or len(event.token_ids) <= max_tokens
        or len(event.texts) != len(event.token_ids)
    ):
        yield event
        return
    rest, prompt_logprobs = event.text, event.prompt_logprobs
    for start in range(0, len(event.token_ids), max_tokens):
        part = slice(start, start + max_tokens)
        texts = event.texts[part]
        is_last = start + max_tokens >= len(event.token_ids)
        length = len(rest) if is_last else sum(map(len, texts))
        yield replace(
            event,
            text=rest[:length],
            token_ids=event.token_ids[part],
            logprobs=event.logprobs[part],
            prompt_logprobs=prompt_logprobs,
            texts=texts,
        )
        rest, prompt_logprobs = rest[length:], ()
