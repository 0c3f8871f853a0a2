"""Streams that break and go on: the ids of events, and what a client says it has received.

The id of an event is how many events of each choice have been sent with it, joined by dots, "12" of
one choice, "12.9" of two: a function of the tokens alone. A client that has kept one number may
have the rest: from the request as it runs on, or computed anew with its seed.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import GenerateInput, ReplayInput
from quire.contract.outputs import Started
from quire.contract.sampling_params import COUNTS, FILLED_IN, SamplingParams
from router.http.call import LAST_EVENT_ID, REQUEST_ID, HttpCall, check_id
from router.http.fields import Fields
from router.requests.inference import Inference

# More of them would make ids longer than the events.
MAX_CHOICES_WITH_IDS = 64
# What APIs put before a request id to make the id of an answer.
ID_PREFIXES = ("cmpl-", "chatcmpl-", "resp_", "msg_")
_MAX_ID_CHARS = 1024
# The end of the year 9999: later times are none to a template.
_MAX_CREATED = 253_402_300_799


class EventIds:
    """Numbers the events of a stream.

    Args:
        num_choices: that it has.
        received: of each choice, how many events its client has; fewer choices stand for none.
    """

    def __init__(self, num_choices: int, received: Sequence[int] = ()) -> None:
        self._num_events = [0] * num_choices
        self._received = [*received, *[0] * (num_choices - len(received))]

    def next(self, index: int) -> str | None:
        """Return the id of a choice's next event, "" for none; None where its client has it."""
        self._num_events[index] += 1
        if self._num_events[index] <= self._received[index]:
            return None
        if len(self._num_events) > MAX_CHOICES_WITH_IDS:
            return ""
        # Of other choices the client may have more than came again so far.
        have = zip(self._num_events, self._received, strict=True)
        return ".".join(str(max(numbers)) for numbers in have)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a client says of the stream that broke.

    Attributes:
        request_id: of the stream.
        received: of each choice, how many events the client has.
        seed: that the stream reported; None where the client does not say.
        fingerprint: likewise, "" where the client does not say.
    """

    request_id: str
    received: tuple[int, ...]
    seed: int | None = None
    fingerprint: str = ""


def read_resumption(call: HttpCall, num_choices: int, is_stream: bool) -> Resumption | None:
    """Return what a call resumes; None for a new request.

    Args:
        call: with a field `resume {id, seed, starting_after, system_fingerprint}` in its body, or
            the header Last-Event-ID.
        num_choices: of the request.
        is_stream: whether the answer is one; only then it may have broken.

    Raises:
        InvalidRequestError: it is malformed.
    """
    if "resume" in call.body:
        if not is_stream:
            raise call.body.refuse("resume", "must come with stream")
        resume = call.body.fields("resume")
        answer_id = resume.text("id")
        if not answer_id:
            raise resume.refuse("id", "must be that of the stream, got none")
        request_id = _bare(answer_id)
        check_id("resume.id", request_id)
        received = _numbers(resume, num_choices)
        fingerprint = resume.text("system_fingerprint")
        return Resumption(request_id, received, read_seed(resume), fingerprint)
    last_id = call.headers.get(LAST_EVENT_ID)
    if not last_id or not is_stream:
        return None
    if not call.request_id:
        raise InvalidRequestError(REQUEST_ID, f"must be that of the stream with {LAST_EVENT_ID}")
    return Resumption(call.request_id, _parse(LAST_EVENT_ID, last_id, num_choices))


def read_seed(resume: Fields) -> int | None:
    """Return the seed that a stream reported; None where its client does not say.

    Raises:
        InvalidRequestError: it is none.
    """
    seed = resume.integer("seed")
    if seed is not None and not 0 <= seed < 2**64:
        raise resume.refuse("seed", f"must be in [0, 2**64), got {str(seed)[:32]}")
    return seed


def read_created(resume: Fields, name: str) -> int:
    """Return when a stream was created, in seconds since the epoch; now where it is not given.

    Raises:
        InvalidRequestError: it is no such time.
    """
    created = resume.integer(name, int(time.time()))
    if created is None or not 0 <= created <= _MAX_CREATED:
        got = str(created)[:32]
        raise resume.refuse(name, f"must be seconds in [0, {_MAX_CREATED}], got {got}")
    return created


async def replay_of(
    inference: Inference, call: HttpCall, request: GenerateInput, resumption: Resumption
) -> ReplayInput:
    """Return what computes a request again, or finds it running; waits a while for a cell.

    Args:
        inference: that may have it.
        call: of the client.
        request: as it was sent, with the id of the stream.
        resumption: what the client says of it.

    Raises:
        InvalidRequestError: without a seed, other tokens might come.
        QuireError: as `Inference.find_model`.
    """
    params = request.sampling_params
    seed = params.seed if resumption.seed is None else resumption.seed
    if seed is None:
        seed = inference.seed_of(request.request_id, call.caller)
    if seed is None and params.temperature > 0.0:
        raise InvalidRequestError(
            "seed",
            "must be that of the stream, which does not run here any more, got none; several "
            "prompts share one only if their request gives it",
        )
    if resumption.fingerprint:
        numerics_id, _, rest = resumption.fingerprint.partition(".")
        text_id, _, filled = rest.partition(".")
        defaults = _parse_defaults(filled)
        return ReplayInput(request, seed or 0, numerics_id, text_id, sampling_defaults=defaults)
    found = await inference.find_model(request.model)  # a router that has just started knows none
    return ReplayInput(request, seed or 0, found.numerics_id, found.text_id)


def fingerprint(started: Started) -> str | None:
    """Return OpenAI's `system_fingerprint`: with the same one, a seed gives the same tokens.

    It holds the ids of arithmetic and text, and what was filled in of the sampling parameters.
    """
    if not started.numerics_id:
        return None
    filled = ",".join(f"{name}={value!r}" for name, value in started.sampling_defaults.items())
    return f"{started.numerics_id}.{started.text_id}.{filled}".rstrip(".")


def _parse_defaults(filled: str) -> dict[str, float]:
    """Return what a fingerprint says was filled in of sampling parameters.

    Raises:
        InvalidRequestError: it is malformed, or out of bounds.
    """
    found: dict[str, float] = {}
    for pair in filled.split(",") if filled else ():
        name, _, text = pair.partition("=")
        try:
            value = float(text) if len(text) < 32 else math.nan
        except ValueError:
            value = math.nan
        if name not in FILLED_IN or not math.isfinite(value):
            raise InvalidRequestError("system_fingerprint", f"must be a stream's, got {pair[:64]}")
        found[name] = int(value) if name in COUNTS else value
    SamplingParams(**found)  # type: ignore[arg-type]
    return found


def _bare(answer_id: str) -> str:
    for prefix in ID_PREFIXES:
        if answer_id.startswith(prefix):
            return answer_id.removeprefix(prefix)
    return answer_id


def _numbers(resume: Fields, num_choices: int) -> tuple[int, ...]:
    """Return `starting_after`: the id of the last event, or its number; absent for none."""
    value = resume.value("starting_after")
    if isinstance(value, str):
        return _parse(resume.path("starting_after"), value, num_choices)
    number = resume.integer("starting_after", 0) or 0
    if number < 0 or (number and num_choices > 1):
        raise resume.refuse(
            "starting_after", "must be the id of an event, or the number of one of the only choice"
        )
    return (number,)


def _parse(field: str, event_id: str, num_choices: int) -> tuple[int, ...]:
    parts = event_id.split(".") if len(event_id) <= _MAX_ID_CHARS else []
    is_id = all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts)
    if not is_id or len(parts) != num_choices:
        raise InvalidRequestError(
            field, f"must be the id of an event of {num_choices} choices: numbers joined by dots"
        )
    return tuple(map(int, parts))
