"""What `quire generate` shows: text on stdout as it comes, figures on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from launch.standard_streams import open_stdout

if TYPE_CHECKING:
    from quire.contract.outputs import Delta, Event, Finished, TokenLogprobs
    from quire.contract.sampling_params import SamplingParams
    from quire.contract.time_breakdown import TimeBreakdown


# Labels of the parts of a time breakdown.
_PARTS = {
    "router_us": "router: checks, choice of a cell",
    "tokenize_us": "router: tokenizing",
    "wire_us": "wire between router and scheduler",
    "queue_step_us": "queued, for the next step",
    "queue_blocks_us": "queued, for free blocks (the cache is full)",
    "queue_seqs_us": "queued, behind --max-num-seqs",
    "queue_tokens_us": "queued, behind --max-num-batched-tokens",
    "not_ready_us": "no cell was ready",
    "preempted_us": "preempted",
    "prefill_us": "prefill",
    "decode_us": "decode",
    "recovering_us": "recovering from the loss of a cell",
    "unreported_us": "at a cell that reported nothing",
    "delivery_us": "delivery",
}


class StreamPrinter:
    """Takes the events of one request.

    A single output is shown as it comes; several, one after the other, when each is complete.

    Args:
        params: of the request.

    Raises:
        ConfigError: texts have nowhere to go.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._out = open_stdout()
        self._is_single = params.n == 1
        self._began = self._first = time.perf_counter()
        self._seed = 0
        self._texts: dict[int, list[str]] = {}

    def show(self, event: Event) -> None:
        """Show what an event brings."""
        from quire.contract.outputs import Delta, Started

        match event:
            case Started():
                self._seed = event.seed
            case Delta():
                self._show_delta(event)
            case _:
                self._show_finished(event)

    def _show_delta(self, delta: Delta) -> None:
        if self._first == self._began:
            self._first = time.perf_counter()
        if self._is_single:
            self._out.write(delta.text)
            self._out.flush()
        else:
            self._texts.setdefault(delta.index, []).append(delta.text)
        for position in delta.prompt_logprobs:
            _say(f"[prompt {_logprobs(position)}]")
        for position in delta.logprobs:
            _say(f"[{delta.index}: {_logprobs(position)}]")

    def _show_finished(self, finished: Finished) -> None:
        if not self._is_single:
            self._out.write("".join(self._texts.get(finished.index, ())))
        self._out.write("\n")
        self._out.flush()
        elapsed = time.perf_counter() - self._began
        parts = [] if self._is_single else [f"output {finished.index}"]
        parts += [
            f"{finished.num_output_tokens} tokens",
            finished.finish_reason.shown,
            f"first after {(self._first - self._began) * 1e3:.0f} ms",
            f"{finished.num_output_tokens / elapsed:.1f} tokens/s",
            f"seed {self._seed}",
        ]
        if finished.cumulative_logprob is not None:
            parts.append(f"log-probability {finished.cumulative_logprob:.3f}")
        _say(f"[{', '.join(parts)}]")
        if (error := finished.finish_reason.error) is not None:
            _say(f"error: {error.message}")
        if finished.time_breakdown is not None:
            _say(_time_breakdown(finished.time_breakdown))


def _time_breakdown(breakdown: TimeBreakdown) -> str:
    """Return a line for each part that took any time, in the order in which they come about."""
    rows = [(us, _PARTS[name]) for name, us in breakdown.parts.items() if us]
    rows.append((breakdown.total_us, "in all"))
    return "\n".join(f"{us / 1e3:>10.1f} ms  {what}" for us, what in rows)


def _logprobs(position: TokenLogprobs) -> str:
    texts = [
        f"{text!r} ({token_id}) {logprob:.3f}"
        for token_id, logprob, text in zip(
            position.token_ids, position.logprobs, position.texts, strict=True
        )
    ]
    line = f"{texts[0]} rank {position.sampled_rank}"
    return f"{line}; best {', '.join(texts[1:])}" if texts[1:] else line


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
