"""One output of a request: its tokens, its text, and what of both the client has yet to read."""

from quire.contract.outputs import Delta, Finished, FinishReason, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from router.text.detokenize import Detokenizer
from router.text.stop_strings import StopStrings


class Output:
    """The state of one output at the router.

    What has not been read is kept as one merged delta, so that a client that does not read costs at
    most `max_tokens` tokens and their text.

    Attributes:
        token_ids: so far.
        finish_reason: None while it goes on.
        cumulative_logprob: sum over the tokens; None where they are not known.
    """

    def __init__(self, params: SamplingParams, detokenizer: Detokenizer):
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.cumulative_logprob: float | None = None
        self._min_tokens = params.min_tokens
        self._reports_logprobs = params.logprobs is not None
        self._detokenizer = detokenizer
        self._stop = StopStrings(params.stop, params.include_stop_str_in_output)
        self._stop_str: str | None = None
        # Unread.
        self._text: list[str] = []
        self._num_read = 0
        self._logprobs: list[TokenLogprobs] = []
        self._end_read = False

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> bool:
        """Take the next token.

        Returns:
            Whether its text completed a stop string: the output has ended.
        """
        self.token_ids.append(token_id)
        if logprobs is not None and logprobs.token_ids:
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + logprobs.logprobs[0]
            if self._reports_logprobs:
                self._logprobs.append(logprobs)
        self._show(self._detokenizer.push(token_id))
        return self.finish_reason is not None

    def finish(self, reason: FinishReason) -> None:
        """End the output; text held back goes out, unless it completes a stop string."""
        if self.finish_reason is not None:
            return
        self._show(self._detokenizer.flush())
        if self.finish_reason is None:
            self._text.append(self._stop.flush())
            self.finish_reason = reason

    def _show(self, text: str) -> None:
        """Let new text be read as far as it cannot be part of a stop string."""
        if len(self.token_ids) > self._min_tokens:
            text, self._stop_str = self._stop.push(text)
            if self._stop_str is not None:
                self.finish_reason = FinishReason.STOP
        self._text.append(text)

    def read(self, index: int) -> list[Delta | Finished]:
        """Return what is new since the last call.

        Args:
            index: that the client knows this output by.
        """
        events: list[Delta | Finished] = []
        text, token_ids = "".join(self._text), tuple(self.token_ids[self._num_read :])
        if text or token_ids:
            events.append(Delta(text, token_ids, tuple(self._logprobs), index))
            self._text, self._logprobs = [], []
            self._num_read = len(self.token_ids)
        if self.finish_reason is not None and not self._end_read:
            self._end_read = True
            events.append(
                Finished(
                    self.finish_reason,
                    len(self.token_ids),
                    self._stop_str,
                    index,
                    self.cumulative_logprob,
                )
            )
        return events
