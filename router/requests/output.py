"""One output of a request: its tokens, its text, and what of both the client has yet to read."""

import math
from collections.abc import Collection

from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import ReceivedOutput
from quire.contract.outputs import Delta, Finished, FinishReason, TokenLogprobs
from quire.contract.sampling_params import MAX_TOKENS, SamplingParams
from router.requests.replay import Replay, TextReplay
from router.text.detokenize import Detokenizer
from router.text.stop_strings import StopStrings

# Log-probabilities that were sent and may have to be sent again, of an output and of a prompt. It
# must be more than is on the way to a client.
MAX_KEPT_BYTES = 2**20
# Of a position, and of each token there, as Python's objects.
_BYTES_PER_POSITION, _BYTES_PER_LOGPROB = 200, 72


def max_kept_positions(num_logprobs: int | None) -> int:
    """Return for how many positions log-probabilities are kept after they have been sent.

    Args:
        num_logprobs: that the client asked for, beside the chosen token's; None for none.
    """
    return MAX_KEPT_BYTES // bytes_per_position(num_logprobs)


def bytes_per_position(num_logprobs: int | None) -> int:
    """Return what the log-probabilities of a position take, roughly."""
    return _BYTES_PER_POSITION + _BYTES_PER_LOGPROB * (1 + (num_logprobs or 0))


class Output:
    """The state of one output at the router.

    What has not been read is kept as one merged delta, so that a client that does not read costs at
    most `max_tokens` tokens and their text. What has been read is kept, within bounds, where a
    client that did not receive it may come back.

    Attributes:
        token_ids: so far.
        finish_reason: None while it goes on.
        cumulative_logprob: sum over the tokens; None where they are not known.
        vector: of the prompt, where one is wanted, once it has come.
    """

    def __init__(
        self,
        params: SamplingParams,
        detokenizer: Detokenizer,
        stop_token_ids: Collection[int],
        keeps: bool = False,
    ):
        """Begin an output.

        Args:
            params: of its request.
            detokenizer: its own.
            stop_token_ids: tokens that end it.
            keeps: whether what has been read may be asked for again.
        """
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.cumulative_logprob: float | None = None
        self.vector: bytes | None = None
        self._min_tokens = params.min_tokens
        self._reports_logprobs = params.logprobs is not None
        self._detokenizer = detokenizer
        # What ends a text is no part of it: no stop string, and no stop token.
        self._hidden = () if params.include_stop_str_in_output else stop_token_ids
        self._stop = StopStrings(params.stop, params.include_stop_str_in_output)
        self._stop_str: str | None = None
        # For its client, which has read the first of each.
        self._text = TextReplay(keeps)
        # What of it each token brought: a function of the tokens, however they are read.
        self._pieces: Replay[str] = Replay(MAX_TOKENS if keeps else 0)
        self._num_read = 0
        max_kept = max_kept_positions(params.logprobs) if keeps else 0
        self._logprobs: Replay[TokenLogprobs] = Replay(max_kept)
        self._end_read = False
        self._end_received = False  # as its client has said

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
        text = "" if token_id in self._hidden else self._detokenizer.push(token_id)
        self._pieces.append(self._show(text))
        return self.finish_reason is not None

    def finish(self, reason: FinishReason) -> None:
        """End the output; text held back goes out, unless it completes a stop string."""
        if self.finish_reason is not None:
            return
        self._show(self._detokenizer.flush())
        if self.finish_reason is None:
            self._text.append(self._stop.flush())
            self.finish_reason = reason

    def _show(self, text: str) -> str:
        """Let new text be read as far as it cannot be part of a stop string; return that."""
        if len(self.token_ids) > self._min_tokens:
            text, self._stop_str = self._stop.push(text)
            if self._stop_str is not None:
                self.finish_reason = FinishReason.STOP
        self._text.append(text)
        return text

    def skip(self, received: ReceivedOutput) -> int:
        """Count as read what the client has from an earlier stream.

        Returns:
            Bytes of text that it does not have yet, 0 where it has the end.

        Raises:
            InvalidRequestError: what it has is not the beginning of this output.
        """
        field, num_tokens = f"received of output {received.index}", len(received.token_ids)
        self._end_read = self._end_received = received.ended
        if received.ended:
            self._text.read()
            self._pieces.read()
            self._logprobs.read()
            self._num_read = len(self.token_ids)
            return 0
        if tuple(self.token_ids[:num_tokens]) != received.token_ids:
            raise InvalidRequestError(field, "must be the first tokens of it, got others")
        num_bytes = self._text.num_bytes
        rest = self._text.after(received.num_text_bytes)
        if rest is None:
            raise InvalidRequestError(
                field,
                f"text must end with a character within {num_bytes} bytes, "
                f"got {received.num_text_bytes}",
            )
        self._text.go_to(received.num_text_bytes, rest)
        self._pieces.go_to(num_tokens)
        self._logprobs.go_to(num_tokens)
        self._num_read = num_tokens
        return num_bytes - received.num_text_bytes

    def may_go_on_after(self, received: ReceivedOutput) -> bool:
        """Return whether `skip` can go to where a client stands, in what is kept of this output."""
        num_tokens = len(received.token_ids)
        if received.ended:
            return self.finish_reason is not None
        return (
            not self._end_received
            and tuple(self.token_ids[:num_tokens]) == received.token_ids
            and self._text.after(received.num_text_bytes) is not None
            and (not self._reports_logprobs or self._keeps_logprobs_after(num_tokens))
        )

    def _keeps_logprobs_after(self, num_tokens: int) -> bool:
        is_parallel = len(self._logprobs) == len(self.token_ids)
        return is_parallel and self._logprobs.covers(num_tokens)

    def rank(self) -> float:
        """Return its log-probability, to rank it by; -inf without a token."""
        return -math.inf if self.cumulative_logprob is None else self.cumulative_logprob

    def read(self, index: int, num_cached_tokens: int = 0) -> list[Delta | Finished]:
        """Return what is new since the last call.

        Args:
            index: that the client knows this output by.
            num_cached_tokens: of the prompt; see Finished.
        """
        events: list[Delta | Finished] = []
        text, token_ids = self._text.read(), tuple(self.token_ids[self._num_read :])
        if text or token_ids:
            logprobs, pieces = self._logprobs.read(), self._pieces.read()
            events.append(
                Delta(
                    *(text, token_ids, logprobs, index, (), pieces),
                    num_cached_tokens=num_cached_tokens,
                )
            )
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
                    vector=self.vector,
                    num_cached_tokens=num_cached_tokens,
                )
            )
        return events
