"""Outcomes with made-up times."""

from collections.abc import Sequence

from launch.bench.outcome import Outcome


def outcome(
    started: float,
    reads: Sequence[float],
    *,
    num_tokens: int | None = None,
    weights: Sequence[int] = (),
    ended: float | None = None,
    num_prompt_tokens: int = 10,
    error: str = "",
) -> Outcome:
    """A request whose tokens were read at these times, one at each unless weights are given."""
    made = Outcome(due=started, num_prompt_tokens=num_prompt_tokens, started=started, error=error)
    for at, weight in zip(reads, weights or [1] * len(reads), strict=True):
        made.arrivals.add(at, weight)
        made.texts.append("a" * weight)
    made.ended = ended if ended is not None else (reads[-1] if reads else started)
    made.num_output_tokens = num_tokens
    return made
