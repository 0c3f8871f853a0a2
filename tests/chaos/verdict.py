"""What came of a run of chaos: answers compared, stalls by kind of disturbance."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.trouble import Disturbance
from tests.chaos.workload import SILENT, Answer, Job, Stream, difference

# A gap that begins this long after a disturbance is another's, or a busy machine's.
_REACH_S = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a run.

    Attributes:
        lines: of the report.
        num_wrong: streams that did not end with the undisturbed answer.
    """

    lines: list[str]
    num_wrong: int


def stalls(
    disturbances: Sequence[Disturbance], streams: Sequence[Stream]
) -> dict[str, list[float]]:
    """Return, for each kind, the longest wait for a token of each stream that met one of it.

    A stream meets a disturbance if it waits for a token then, or begins to within a second. A wait
    of several disturbances counts for the first.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for stream in streams:
        if stream.job.mode in SILENT:
            continue
        longest: dict[Disturbance, float] = {}
        for began, ended in stream.gaps():
            first = next(
                (each for each in disturbances if began - _REACH_S <= each.at < ended), None
            )
            if first is not None:
                longest[first] = max(longest.get(first, 0.0), ended - began)
        for disturbance, seconds in longest.items():
            found[disturbance.kind].append(seconds)
    return found


def judge(
    streams: Sequence[Stream],
    expected: Mapping[Job, Answer],
    alone_s: Mapping[Job, float],
    disturbances: Sequence[Disturbance],
) -> Verdict:
    """Compare every stream with the undisturbed one, and describe how long they stood still.

    Args:
        streams: that have ended.
        expected: of every job, its answer when nothing was disturbed.
        alone_s: and how long it took.
        disturbances: what was done meanwhile, in its order.
    """
    wrong: Counter[str] = Counter()
    examples: list[str] = []
    for stream in streams:
        if how := difference(stream, expected[stream.job]):
            wrong[how] += 1
            detail = stream.error or f"got {stream.answer}, must be {expected[stream.job]}"
            examples.append(
                f"  {stream.job.mode}, prompt {stream.job.prompt}: {how}: {detail[:600]}"
            )
    kinds = Counter(each.kind for each in disturbances)
    lines = [
        f"{len(streams)} streams, {sum(len(each.token_times) for each in streams)} deltas, "
        f"{len(disturbances)} disturbances",
        "differing from the undisturbed run: "
        + (", ".join(f"{number} by {how}" for how, number in wrong.items()) or "none"),
        *examples[:5],
        "",
        "| disturbance | times | streams that waited | p50, s | p99, s | longest, s |",
        "|---|---|---|---|---|---|",
    ]
    waits = stalls(disturbances, streams)
    for kind, number in sorted(kinds.items()):
        lines.append(f"| {kind} | {number} | {_percentiles(waits[kind])} |")
    late = [
        max(0.0, each.ended_at - each.began_at - alone_s[each.job])
        for each in streams
        if each.job.mode in SILENT
    ]
    lines.append(f"| beams and best_of, beside undisturbed | | {_percentiles(late)} |")
    return Verdict(lines, wrong.total())


def _percentiles(waits: list[float]) -> str:
    if not waits:
        return "0 | | | "
    ordered = sorted(waits)
    chosen = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99, 1.0))
    return f"{len(ordered)} | " + " | ".join(f"{each:.2f}" for each in chosen)
