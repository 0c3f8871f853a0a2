"""What the choices of a chat show of each token, and of the end.

A choice comes in parts: one for its beginning, one for each token, one for the end. Which parts
there are, and what is in them, depends on the tokens alone, however many of them came at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quire.contract.outputs import Delta, Event, Finished, Started, TokenLogprobs
from router.http.logprobs import chat_logprob, named_by_ids
from router.http.resume import fingerprint
from router.http.usage import token_usage


@dataclass(slots=True)
class Part:
    """A part of a choice.

    Attributes:
        index: of the choice.
        text: may be empty.
        token_ids: of that text.
        logprobs: OpenAI's entry for the token; None where it was not asked for.
        is_first: whether the choice begins with it; it has no text then.
        end: what ended the choice; None before.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: dict[str, Any] | None = None
    is_first: bool = False
    end: Finished | None = None


class ChatChoices:
    """Takes the events of a chat, and makes parts of its n choices.

    Args:
        n: choices.
        top_logprobs: how many of the most probable tokens to show for each; None for none.
        token_bytes: returns those of a token, where any are shown.
        as_ids: show tokens by their ids.

    Attributes:
        started: the first event; None before.
        prompt_logprobs: so far.
        num_tokens: of all choices so far.
        num_cached_tokens: of the prompt; known from the first token on.
    """

    def __init__(
        self,
        n: int,
        top_logprobs: int | None = None,
        token_bytes: Callable[[int], bytes] | None = None,
        as_ids: bool = False,
    ) -> None:
        self.started: Started | None = None
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.num_tokens = self.num_cached_tokens = 0
        self._n = n
        self._top_logprobs = top_logprobs
        self._token_bytes = token_bytes
        self._as_ids = as_ids
        # Text of each choice that came with no token: with its end.
        self._tails = [""] * n

    @property
    def usage(self) -> dict[str, Any]:
        """The numbers of tokens so far."""
        num_prompt = 0 if self.started is None else self.started.num_prompt_tokens
        return token_usage(num_prompt, self.num_tokens, self.num_cached_tokens)

    @property
    def fingerprint(self) -> str | None:
        """OpenAI's `system_fingerprint`."""
        started = self.started
        return None if started is None else fingerprint(started)

    def take(self, event: Event) -> Iterator[Part]:
        """Yield the parts that an event brings."""
        match event:
            case Started():
                self.started = event
                yield from (Part(index, is_first=True) for index in range(self._n))
            case Delta():
                self.num_cached_tokens = event.num_cached_tokens
                self.prompt_logprobs.extend(event.prompt_logprobs)
                yield from self._take_delta(event)
            case Finished():
                self.num_cached_tokens = event.num_cached_tokens
                text, self._tails[event.index] = self._tails[event.index], ""
                yield Part(event.index, text, end=event)

    def _take_delta(self, delta: Delta) -> Iterator[Part]:
        self._tails[delta.index] += delta.text[sum(map(len, delta.texts)) :]
        self.num_tokens += len(delta.token_ids)
        for place, (token_id, text) in enumerate(zip(delta.token_ids, delta.texts, strict=True)):
            logprobs = None
            if self._top_logprobs is not None:
                assert self._token_bytes is not None, "as any are shown"
                position = delta.logprobs[place]
                if self._as_ids:
                    position = named_by_ids(position)
                logprobs = chat_logprob(position, self._top_logprobs, self._token_bytes)
            yield Part(delta.index, text, (token_id,), logprobs)


def joined_logprobs(entries: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return the `logprobs` of a choice, None where there are none."""
    content = [each for each in entries if each is not None]
    return {"content": content, "refusal": None} if content else None
