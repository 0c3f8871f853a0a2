"""Whole outputs in the shape that vLLM's users know them in: of `LLM` and the engines."""

from dataclasses import dataclass, field

from quire.contract.chat import ToolCall
from quire.contract.time_breakdown import TimeBreakdown


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token at one position.

    Attributes:
        logprob: its log-probability there.
        rank: its place among all tokens, 1 for the most probable.
        decoded_token: what it reads as on its own.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One continuation of a prompt, as the offline API returns it.

    Attributes:
        index: number of the continuation.
        text: of the output.
        token_ids: of the output.
        cumulative_logprob: sum over the output's tokens; None where they are not known: without
            logprobs, best_of or use_beam_search.
        logprobs: of each position, by token id; None if they were not asked for.
        finish_reason: "stop", "length", "abort" or "error"; None while it goes on, in an engine.
        stop_reason: stop string or stop token id that ended it; None for anything else.
        content, reasoning, tool_calls: of a chat with parse_output, as of Completion.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: tuple[dict[int, Logprob], ...] | None
    finish_reason: str | None
    stop_reason: int | str | None
    content: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def finished(self) -> bool:
        """Return whether it has ended."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What became of a prompt.

    Attributes:
        request_id: made by the router, or the one that an engine was given.
        prompt: its text; None where token ids were given.
        prompt_token_ids: its token ids.
        outputs: the continuations.
        finished: False for one that was given up, and in an engine while it goes on.
        prompt_logprobs: of each position of the prompt, by token id, None for the first; None if
            they were not asked for.
        time_breakdown: where the time of the request went, if that was asked for.
        num_cached_tokens: of the prompt, that the prefix cache had; None while that is not known.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
    time_breakdown: TimeBreakdown | None = None
    num_cached_tokens: int | None = field(default=None, compare=False)

    @property
    def metrics(self) -> TimeBreakdown | None:
        """Where its time went: `time_breakdown`, by vLLM's name."""
        return self.time_breakdown


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """A text that a beam search found.

    Attributes:
        tokens: of prompt and output.
        text: of both, without special tokens.
        cum_logprob: sum over the output's tokens.
        finish_reason: "stop" or "length".
    """

    tokens: tuple[int, ...]
    text: str
    cum_logprob: float
    finish_reason: str


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """What beam search found for a prompt.

    Attributes:
        sequences: best first.
    """

    sequences: tuple[BeamSearchSequence, ...]
