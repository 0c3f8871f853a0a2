"""What a client records of a stream, and when it gives up."""

from dataclasses import replace

import pytest

from quire.contract.chat import ChatInput, ChatMessage, ResumeChatInput
from quire.contract.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NoCellError,
    NumericsLostError,
    OverloadedError,
    ProtocolDiffersError,
    QuireError,
    ReaderStalledError,
    RequestExistsError,
    SupersededError,
    UnavailableError,
)
from quire.contract.inputs import GenerateInput, ReceivedOutput, ResumeInput
from quire.contract.outputs import Delta, Finished, FinishReason, Started, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from quire.contract.versions import PROTOCOL, UNVERSIONED
from quire.sdk.resume import LONGEST_BACKOFF_S, ResumableStream

LIMIT_S = 10.0
BROKEN = UnavailableError("gone")


class Clock:
    """Goes on when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(
    num_targets: int = 1,
    started: bool = True,
    timeout_s: float | None = None,
    is_known: bool = False,
) -> tuple[ResumableStream, Clock]:
    clock = Clock()
    request = GenerateInput("prompt", SamplingParams(n=2, logprobs=0))
    stream = ResumableStream(request, num_targets, LIMIT_S, is_known, timeout_s, clock)
    assert stream.request is request
    if started:
        assert stream.take(Started("mine", 1, 7, "5f7a", "ac14", max_tokens=9))
    return stream, clock


def test_a_resumed_request_holds_what_was_received() -> None:
    stream, _ = make()
    position = TokenLogprobs((5, 6), (-0.1, -0.2), 1)
    assert stream.take(Delta("", (), (), 0, (position,)))
    assert stream.take(Delta("é", (5,), (position,), 1))
    assert stream.take(Delta("", (6,), (position,), 1))
    assert stream.take(Delta("x", (7,), (position,), 0))
    assert stream.take(Finished(FinishReason.STOP, 1, index=0))
    assert not stream.take(Started("mine", 1, 7, "5f7a", "ac14", max_tokens=9)), "seen before"
    assert stream.request == ResumeInput(
        GenerateInput("prompt", SamplingParams(n=2, logprobs=0, max_tokens=9), "mine"),
        7,
        "5f7a",
        "ac14",
        (
            ReceivedOutput(1, (5, 6), 2, False, -0.1 + -0.1),
            ReceivedOutput(0, (), 1, True, -0.1),
        ),
        1,
    )
    with pytest.raises(UnavailableError, match="ended the stream early"):
        stream.check_complete()
    stream.take(Finished(FinishReason.LENGTH, 9, index=1))
    stream.check_complete()
    assert stream.failed(BROKEN) == 0.0, "what comes after the end does not matter"


def test_a_router_that_does_not_parse_is_left() -> None:
    for parse_output in (True, False):
        chat = ChatInput((ChatMessage("user", "Hi"),), SamplingParams(), parse_output=parse_output)
        stream = ResumableStream(chat, 2, LIMIT_S)
        started = Started("mine", 3, 7, protocol_version=UNVERSIONED, prompt_token_ids=(5,))
        if parse_output:
            with pytest.raises(ProtocolDiffersError, match="parse_output"):
                stream.take(started)
            assert stream.failed(ProtocolDiffersError("x")) == 0.0, "another router may"
            assert stream.request == chat
            stream.take(replace(started, protocol_version=PROTOCOL))
            assert isinstance(stream.request, ResumeChatInput)
            assert stream.request.chat == replace(chat, messages=())
        else:
            assert stream.take(started)


def test_a_break_is_tried_again_until_the_limit_since_the_last_event() -> None:
    stream, clock = make()
    for _ in range(2):
        broke_at, delays = clock.now, []
        while clock.now < broke_at + LIMIT_S - LONGEST_BACKOFF_S:
            delays.append(stream.failed(BROKEN))
            clock.now += delays[-1]
        assert delays[0] <= 0.05
        assert LONGEST_BACKOFF_S / 2 <= delays[-1] <= LONGEST_BACKOFF_S
        stream.take(Delta("x", (7,)))
    stream.failed(BROKEN)
    clock.now += LIMIT_S
    with pytest.raises(UnavailableError, match="gone"):
        stream.failed(BROKEN)


def test_time_in_which_a_router_works_on_it_does_not_count() -> None:
    """A router that waits for its cell is lost as well: the client goes on with the next."""
    stream, clock = make()
    clock.now += stream.failed(BROKEN)
    for _ in range(2):
        for _ in range(100):
            clock.now += LIMIT_S / 2
            stream.take_heartbeat()
        clock.now += LIMIT_S / 2
        clock.now += stream.failed(BROKEN)
    clock.now += LIMIT_S
    with pytest.raises(UnavailableError, match="gone"):
        stream.failed(BROKEN)


def test_a_router_that_waited_for_a_cell_in_vain_ends_what_broke_long_ago() -> None:
    """Else a stream whose cells are gone for good would be resumed for ever."""
    for has_broken in (False, True):
        stream, clock = make()
        if has_broken:
            clock.now += stream.failed(BROKEN)
        for _ in range(100):
            clock.now += LIMIT_S / 2
            stream.take_heartbeat()
        in_vain = NoCellError("no scheduler is reachable")
        if not has_broken:
            clock.now += stream.failed(in_vain)  # another router may have other cells
            clock.now += LIMIT_S
            stream.take_heartbeat()
        with pytest.raises(NoCellError):
            stream.failed(in_vain)


def test_a_stream_that_was_not_read_for_too_long_goes_on() -> None:
    stream, _ = make()
    assert stream.failed(ReaderStalledError("nothing read for 60 s")) <= 0.05
    assert isinstance(stream.request, ResumeInput)


def test_full_queues_say_when_to_come_back() -> None:
    stream, _ = make()
    assert stream.failed(OverloadedError("full", 1500)) >= 1.5
    with pytest.raises(OverloadedError):
        stream.failed(OverloadedError("full", 1000 * int(LIMIT_S + 1)))


@pytest.mark.parametrize(
    "error",
    [
        SupersededError("resumed"),
        NumericsLostError("lost"),
        InvalidRequestError("seed", "wrong"),
        DeadlineExceededError("late"),
    ],
)
def test_other_errors_end_the_stream(error: QuireError) -> None:
    stream, _ = make(num_targets=3)
    with pytest.raises(type(error)):
        stream.failed(error)


def test_before_it_has_started_each_router_is_tried_once() -> None:
    stream, _ = make(num_targets=3, started=False)
    assert [stream.failed(BROKEN) for _ in range(2)] == [0.0, 0.0]
    with pytest.raises(UnavailableError):
        stream.failed(BROKEN)
    stream, _ = make(num_targets=3, started=False)
    with pytest.raises(OverloadedError):
        stream.failed(OverloadedError("full", 1))


def test_what_has_not_started_is_tried_on_where_a_router_has_answered_before() -> None:
    stream, clock = make(num_targets=2, started=False, is_known=True)
    assert stream.failed(BROKEN) == 0.0, "the other one, at once"
    while True:
        assert isinstance(stream.request, GenerateInput)
        try:
            delay_s = stream.failed(BROKEN)
        except UnavailableError:
            break
        assert 0.0 < delay_s <= LONGEST_BACKOFF_S
        clock.now += delay_s
    assert LIMIT_S - LONGEST_BACKOFF_S < clock.now - 100.0 <= LIMIT_S
    other, _ = make(started=False, is_known=True)
    with pytest.raises(InvalidRequestError):
        other.failed(InvalidRequestError("n", "must be at least 1, got 0"))


def test_an_id_that_an_earlier_call_left_in_use_is_tried_again() -> None:
    in_use = RequestExistsError("request_id: mine is in use")
    stream, clock = make(started=False, is_known=True)
    with pytest.raises(RequestExistsError):
        stream.failed(in_use)
    clock.now += stream.failed(BROKEN)
    assert stream.failed(in_use) > 0.0
    assert isinstance(stream.request, GenerateInput)
    clock.now += LIMIT_S
    with pytest.raises(RequestExistsError):
        stream.failed(in_use)
    unknown, _ = make(num_targets=2, started=False)
    assert unknown.failed(BROKEN) == 0.0, "the other one, at once"
    with pytest.raises(RequestExistsError):
        unknown.failed(in_use)


def test_all_calls_share_one_timeout() -> None:
    stream, clock = make(timeout_s=5.0)
    clock.now += 2.0
    assert stream.remaining_s == 3.0
    clock.now += 9.0
    assert stream.remaining_s == 0.0
    assert make()[0].remaining_s is None
