"""What came of one request, as its client saw it. Times are those of `time.perf_counter`."""

from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


class Arrivals:
    """When the tokens of an answer came.

    Two numbers for each read that brought any: while many streams run, nothing is made of them.
    """

    __slots__ = ("_times", "_weights")

    def __init__(self) -> None:
        self._times = array("d")
        self._weights = array("q")

    def add(self, at: float, weight: int) -> None:
        """Note an event with tokens; those that were read at the same time came together.

        Args:
            at: when it was read, at or after those before.
            weight: its number of tokens if the server reports it, else of characters; at least 1.
        """
        if self._times and self._times[-1] == at:
            self._weights[-1] += weight
        else:
            self._times.append(at)
            self._weights.append(weight)

    def __len__(self) -> int:
        return len(self._times)

    @property
    def first(self) -> float:
        """When the first token came; there must be one."""
        return self._times[0]

    def token_times(self, num_tokens: int) -> npt.NDArray[np.float64]:
        """Return when each token came, had those of one read come evenly since the one before.

        Every read brought one token at least, and the others by their weights. So where the server
        reports tokens, or sends them one by one, each read has those that it brought. Tokens that
        came with the first one came when it did.

        Args:
            num_tokens: of the whole answer. A number below that of reads is taken for that.

        Returns:
            [max(num_tokens, reads)] ascending.
        """
        times, weights = np.array(self._times), np.array(self._weights, dtype=np.float64)
        if not len(times):
            return times
        extra = max(0, num_tokens - len(times))
        share = weights - 1 if weights.max() > 1 else np.ones_like(weights)
        # Rounded sums, not shares: what is lost at one read comes at the next.
        handed_out = np.floor(np.cumsum(share) * (extra / share.sum()) + 1e-6)
        handed_out[-1] = extra
        counts = 1 + np.diff(handed_out, prepend=0).astype(np.int64)
        gaps = np.diff(times, prepend=times[0])
        # The k-th of n tokens that came together comes k/n of the gap after the read before.
        places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        left = counts.repeat(counts) - 1 - places
        found: npt.NDArray[np.float64] = np.repeat(times, counts) - left * np.repeat(
            gaps / counts, counts
        )
        return found


@dataclass(slots=True)
class Outcome:
    """What came of one request; its client fills it in.

    Attributes:
        due: when it was to be sent.
        num_prompt_tokens: as the server counts them, or before it has, as the dataset did.
        started: when it was sent.
        ended: when the last event with a part of the answer had come.
        num_output_tokens: as the server counts them; None if it does not.
        arrivals: of its tokens.
        texts: of the answer, piece by piece.
        is_complete: whether the server has sent its end.
        error: why it failed; "" if it did not.
    """

    due: float
    num_prompt_tokens: int
    started: float = 0.0
    ended: float = 0.0
    num_output_tokens: int | None = None
    arrivals: Arrivals = field(default_factory=Arrivals)
    texts: list[str] = field(default_factory=list)
    is_complete: bool = False
    error: str = ""

    @property
    def ttft(self) -> float:
        """Seconds to the first token; to the end of an answer that has none."""
        return (self.arrivals.first if len(self.arrivals) else self.ended) - self.started

    @property
    def latency(self) -> float:
        """Seconds to the end."""
        return self.ended - self.started

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self.texts)
