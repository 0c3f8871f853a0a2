"""A request of an engine while it runs: its events, put together as vLLM shows them."""

from launch.llm_requests import logprobs_by_token
from quire.contract.outputs import Delta, Event, Finished, FinishReason, Started
from quire.contract.request_outputs import CompletionOutput, Logprob, RequestOutput
from quire.contract.sampling_params import SamplingParams


class _Output:
    """One of the n outputs, so far."""

    def __init__(self, index: int, params: SamplingParams) -> None:
        self._index, self._params = index, params
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative: float | None = None if params.logprobs is None else 0.0
        self.finished: Finished | None = None

    def add(self, delta: Delta) -> None:
        self._text += delta.text
        self._token_ids.extend(delta.token_ids)
        self._logprobs.extend(map(logprobs_by_token, delta.logprobs))
        if self._cumulative is not None:
            self._cumulative += sum(position.logprobs[0] for position in delta.logprobs)

    def snapshot(self) -> CompletionOutput:
        finished, reason = self.finished, None
        stop_reason: int | str | None = None
        cumulative = self._cumulative
        if finished is not None:
            reason, stop_reason = finished.finish_reason, finished.stop_str
            if finished.cumulative_logprob is not None:
                cumulative = finished.cumulative_logprob
            last = self._token_ids[-1] if self._token_ids else None
            if reason is FinishReason.STOP and stop_reason is None:
                stop_reason = last if last in self._params.stop_token_ids else None
        return CompletionOutput(
            index=self._index,
            text=self._text,
            token_ids=tuple(self._token_ids),
            cumulative_logprob=cumulative,
            logprobs=None if self._params.logprobs is None else tuple(self._logprobs),
            finish_reason=None if reason is None else reason.shown,
            stop_reason=stop_reason,
        )


class OutputSoFar:
    """Takes the events of a request in their order; `snapshot` has all that they brought.

    Args:
        request_id: the caller's.
        prompt: its text; None where token ids were given.
        params: of the request.
    """

    def __init__(self, request_id: str, prompt: str | None, params: SamplingParams) -> None:
        self._request_id, self._prompt = request_id, prompt
        self._prompt_token_ids: tuple[int, ...] = ()
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = (
            None if params.prompt_logprobs is None else [None]
        )
        self._outputs = [_Output(index, params) for index in range(params.n)]

    def add(self, event: Event) -> bool:
        """Take the next event; return whether it brought anything of an output.

        Raises:
            NotFiniteError: an output failed.
            NoTokenError: the request left no token that could come next.
        """
        match event:
            case Started():
                self._prompt_token_ids = event.prompt_token_ids
                return False
            case Delta():
                if self._prompt_logprobs is not None:
                    self._prompt_logprobs.extend(map(logprobs_by_token, event.prompt_logprobs))
                self._outputs[event.index].add(event)
                return bool(event.token_ids or event.text)
            case Finished():
                if (error := event.finish_reason.error) is not None:
                    raise type(error)(f"request {self._request_id}: {error.message}")
                self._outputs[event.index].finished = event
                return True

    def snapshot(self) -> RequestOutput:
        """Return all there is of every output."""
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=tuple(each.snapshot() for each in self._outputs),
            finished=all(each.finished is not None for each in self._outputs),
            prompt_logprobs=None if self._prompt_logprobs is None else tuple(self._prompt_logprobs),
            num_cached_tokens=max(
                (each.finished.num_cached_tokens for each in self._outputs if each.finished),
                default=None,
            ),
        )
