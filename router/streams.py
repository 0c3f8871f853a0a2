"""One open request: what it has produced, and what its client has yet to read."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator

from quire.errors import QuireError
from quire.log import get_logger
from quire.outputs import Delta, Event, Finished, FinishReason, Started, TokenLogprobs
from quire.sampling_params import SamplingParams
from router.detokenize import Detokenizer
from router.stop_strings import StopStrings
from router.validate import ValidGenerateRequest

log = get_logger()


class RequestStream:
    """The state of one request at the router: all that is needed to start it again elsewhere.

    One side is fed by the scheduler's session (`admit`, `push_token`, `finish`, `fail`; none of
    them waits), the other is read by the client (`events`). What the client has not read yet is
    kept as one merged delta, so a client that does not read costs at most `max_tokens` tokens and
    their text, and holds up nobody.
    """

    def __init__(self, request: ValidGenerateRequest, detokenizer: Detokenizer):
        self.request = request
        self.output_token_ids: list[int] = []
        self.sampling_params: SamplingParams = request.sampling_params
        self.admitted = False
        self.ended = False
        self._detokenizer = detokenizer
        self._stop = StopStrings(
            self.sampling_params.stop, self.sampling_params.include_stop_str_in_output
        )
        self._arrival = time.monotonic()
        self._first_token = self._arrival
        # Unread by the client, in this order.
        self._started: list[Started] = []
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._end: list[Finished | QuireError] = []
        self._unread = asyncio.Event()

    @property
    def request_id(self) -> str:
        """Id of the request, unique among those open at this router."""
        return self.request.request_id

    def admit(self, seed: int) -> None:
        """The scheduler took the request; with a seed it will keep, wherever it continues.

        Mutates: nothing when it was admitted before, by a scheduler that was lost.
        """
        if self.admitted:
            return
        self.admitted = True
        self.sampling_params = dataclasses.replace(self.sampling_params, seed=seed)
        self._start(seed)
        log.info(
            "request_admitted",
            request_id=self.request_id,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            max_tokens=self.sampling_params.max_tokens,
        )

    def _start(self, seed: int) -> None:
        num_prompt_tokens = len(self.request.prompt_token_ids)
        self._started.append(Started(self.request_id, num_prompt_tokens, seed))
        self._unread.set()

    def push_token(self, token_id: int, logprobs: TokenLogprobs | None = None) -> bool:
        """Take the next output token.

        Args:
            token_id: the token.
            logprobs: at its position; not looked at unless the request asked for them.

        Returns:
            Whether its text completed a stop string: the request has ended, and further tokens are
            not to be pushed.
        """
        if not self.output_token_ids:
            self._first_token = time.monotonic()
        self.output_token_ids.append(token_id)
        self._token_ids.append(token_id)
        if self.sampling_params.logprobs is not None and logprobs is not None:
            self._logprobs.append(logprobs)
        text, stop_str = self._look_for_stop(self._detokenizer.push(token_id))
        if text:
            self._text.append(text)
        self._unread.set()
        if stop_str is not None:
            self._close(FinishReason.STOP, stop_str)
        return self.ended

    def _look_for_stop(self, text: str) -> tuple[str, str | None]:
        """Return what may be shown of new text, and the stop string it completes, if one."""
        if len(self.output_token_ids) <= self.sampling_params.min_tokens:
            return text, None
        return self._stop.push(text)

    def finish(self, reason: FinishReason) -> None:
        """End the request; text held back goes out, unless it completes a stop string."""
        if self.ended:
            return
        if not self.admitted:
            # Aborted before a scheduler took it. Its stream starts all the same; without tokens,
            # any seed gives the same ones.
            self._start(self.sampling_params.seed or 0)
        text, stop_str = self._look_for_stop(self._detokenizer.flush())
        self._text.append(text)
        if stop_str is None:
            self._text.append(self._stop.flush())
            self._close(reason, None)
        else:
            self._close(FinishReason.STOP, stop_str)

    def _close(self, reason: FinishReason, stop_str: str | None) -> None:
        self.ended = True
        self._end.append(Finished(reason, len(self.output_token_ids), stop_str))
        self._unread.set()
        self._log_end(reason.value)

    def fail(self, error: QuireError) -> None:
        """End the request with an error, which the client gets after what it has not read yet."""
        if self.ended:
            return
        self.ended = True
        self._end.append(error)
        self._unread.set()
        self._log_end(error.reason.lower())

    def drop(self) -> None:
        """The client has gone: end the request without a word to it."""
        if self.ended:
            return
        self.ended = True
        self._log_end("client_gone")

    def _log_end(self, finish_reason: str) -> None:
        latency = {"latency_ms": _ms(time.monotonic() - self._arrival)}
        if self.output_token_ids:
            latency["first_token_ms"] = _ms(self._first_token - self._arrival)
        log.info(
            "request_finished",
            request_id=self.request_id,
            finish_reason=finish_reason,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=len(self.output_token_ids),
            **latency,
        )

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield Started, then a Delta whenever there is something new, then Finished.

        Raises:
            QuireError: the request failed.
        """
        while True:
            await self._unread.wait()
            self._unread.clear()
            while self._started:
                yield self._started.pop()
            text, self._text = "".join(self._text), []
            token_ids, self._token_ids = tuple(self._token_ids), []
            logprobs, self._logprobs = tuple(self._logprobs), []
            # Taken together with the delta: what comes after the yield belongs to the next round.
            end = list(self._end)
            if text or token_ids:
                yield Delta(text, token_ids, logprobs)
            for last in end:
                if isinstance(last, QuireError):
                    raise last
                yield last
                return


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)
