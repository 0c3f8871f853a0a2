"""What the choices of a completion show: of the prompt, of each token, and of the end.

A choice comes in parts: one for the prompt, where that is shown, one for each token, one for the
end. Which parts there are, and what is in them, depends on the tokens alone, however many of them
came at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import Delta, Event, Finished, FinishReason, Started, TokenLogprobs
from router.http.completions.request import CompletionRequest
from router.http.logprobs import completion_logprobs, id_name, named_by_ids, prompt_logprobs
from router.text.detokenize import Detokenizer

# Tokens and log-probabilities of prompts in one answer, which shows them with each choice.
MAX_PROMPT_ENTRIES = 2**20


@dataclass(slots=True)
class Part:
    """A part of a choice.

    Attributes:
        index: of the choice.
        text: may be empty.
        token_ids: of that text, the prompt's left out.
        logprobs: in OpenAI's shape; None where they were not asked for.
        end: what ended the choice; None before.
        prompt: fields of the prompt's part alone.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: dict[str, Any] | None = None
    end: Finished | None = None
    prompt: dict[str, Any] | None = None


class PromptChoices:
    """Takes the events of one prompt's request, and makes parts of its n choices.

    Args:
        request: that has it.
        place: of the prompt, among those of the request.
        make_detokenizer: of an output, after the tokens of the prompt, where log-probabilities are
            shown: it finds where tokens begin, which their own texts cannot.

    Attributes:
        started: the first event; None before.
        num_tokens: of all its choices so far.
        num_cached_tokens: of the prompt; known from the first token on.
    """

    def __init__(
        self,
        request: CompletionRequest,
        place: int,
        make_detokenizer: Callable[[Sequence[int]], Detokenizer] | None = None,
    ) -> None:
        self.started: Started | None = None
        self.num_tokens = self.num_cached_tokens = 0
        self._request = request
        self._first = place * request.n
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._shows_prompt = request.echo or request.prompt_logprobs is not None
        # Of each choice: characters so far, and text that came with no token.
        self._offsets = [0] * request.n
        self._make_detokenizer = make_detokenizer
        self._detokenizers: list[Detokenizer] = []
        self._tails = [""] * request.n

    def is_prompt_due(self, event: Event) -> bool:
        """Return whether `prompt_parts` come before those of an event."""
        is_output = isinstance(event, Finished) or (
            isinstance(event, Delta) and bool(event.text or event.token_ids)
        )
        return self._shows_prompt and is_output

    @property
    def shows_prompt_logprobs(self) -> bool:
        """Whether those of the prompt's tokens stand among the ones of each choice."""
        return self._request.echo and self._request.logprobs is not None

    def prompt_parts(
        self, text: str, first_token_text: str, offsets: Sequence[int] = ()
    ) -> Iterator[Part]:
        """Yield what shows the prompt, for each choice.

        Args:
            text: of the prompt.
            first_token_text: what its first token reads as.
            offsets: where each of its tokens begins in it, if it `shows_prompt_logprobs`.
        """
        request, positions = self._request, self._prompt_logprobs
        self._shows_prompt = False
        assert self.started is not None, "the first event"
        fields: dict[str, Any] = {}
        if request.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(positions)
        if request.return_token_ids:
            fields["prompt_token_ids"] = list(self.started.prompt_token_ids)
        logprobs = None
        if request.logprobs is not None and self.shows_prompt_logprobs:
            if request.tokens_as_ids:
                positions = [named_by_ids(each) for each in positions]
                first_token_text = id_name(self.started.prompt_token_ids[0])
            texts = [first_token_text, *(each.texts[0] for each in positions)]
            logprobs = completion_logprobs(texts, (None, *positions), offsets, request.logprobs)
        shown = text if request.echo else ""
        for place in range(request.n):
            self._offsets[place] = len(shown)
            yield Part(self._first + place, shown, (), logprobs, None, fields)

    def take(self, event: Event) -> Iterator[Part]:
        """Yield the parts that an event brings.

        Raises:
            InvalidRequestError: the prompt's log-probabilities are too many to be shown with each
                choice.
        """
        match event:
            case Started():
                self._check_size(event)
                self.started = event
                if self._make_detokenizer is not None:
                    prompt, n = event.prompt_token_ids, self._request.n
                    self._detokenizers = [self._make_detokenizer(prompt) for _ in range(n)]
            case Delta():
                self.num_cached_tokens = event.num_cached_tokens
                self._prompt_logprobs.extend(event.prompt_logprobs)
                if event.text or event.token_ids:
                    yield from self._take_delta(event)
            case Finished():
                self.num_cached_tokens = event.num_cached_tokens
                text, self._tails[event.index] = self._tails[event.index], ""
                yield Part(self._first + event.index, text, end=event)

    def _check_size(self, started: Started) -> None:
        request = self._request
        num_top = max(request.prompt_logprobs or 0, request.logprobs or 0)
        if request.prompt_logprobs is None and not (request.echo and request.logprobs is not None):
            return
        num_choices = request.n * len(request.inputs)
        number = num_choices * started.num_prompt_tokens * (2 + num_top)
        if number > MAX_PROMPT_ENTRIES:
            raise InvalidRequestError(
                "prompt_logprobs",
                f"must be at most {MAX_PROMPT_ENTRIES} entries with all choices, got {number}",
            )

    def _take_delta(self, delta: Delta) -> Iterator[Part]:
        place = delta.index
        self._tails[place] += delta.text[sum(map(len, delta.texts)) :]
        if self._request.no_output:
            self._tails[place] = ""
            return
        self.num_tokens += len(delta.token_ids)
        num_top = self._request.logprobs
        for number, (token_id, text) in enumerate(zip(delta.token_ids, delta.texts, strict=True)):
            logprobs = None
            if num_top is not None:
                position = delta.logprobs[number]
                if self._request.tokens_as_ids:
                    position = named_by_ids(position)
                offset = self._offsets[place]
                logprobs = completion_logprobs(position.texts[:1], (position,), (offset,), num_top)
                # Not by what the part shows: text that may yet be a stop string is held back.
                self._offsets[place] += len(self._detokenizers[place].push(token_id))
            yield Part(self._first + place, text, (token_id,), logprobs)


def stop_reason(end: Finished, last_token: int | None, stop_ids: Sequence[int]) -> str | int | None:
    """Return vLLM's `stop_reason`: the stop string or stop token that ended an output."""
    if end.stop_str is not None:
        return end.stop_str
    is_stopped = end.finish_reason is FinishReason.STOP and last_token in stop_ids
    return last_token if is_stopped else None
