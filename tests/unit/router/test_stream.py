"""The mailbox between scheduler and client."""

import asyncio
from typing import Any

import pytest

from quire.contract.errors import UnavailableError
from quire.contract.outputs import (
    Delta,
    Event,
    Finished,
    FinishReason,
    Hypothesis,
    ModelInfo,
    Started,
    TokenLogprobs,
)
from quire.contract.sampling_params import SamplingParams
from quire.observe.tracing import Span, TraceContext
from router.requests.stream import RequestStream
from router.requests.time_ledger import TimeLedger
from router.requests.validate import ValidGenerateRequest
from router.text.detokenize import Detokenizer

MODEL = ModelInfo("m", "LlamaForCausalLM", "float32", 0x110000, 16, (1,), 0)


class CharDetokenizer(Detokenizer):
    """A token is a code point; 0 is half a character."""

    def __init__(self) -> None:
        self._half = False

    def push(self, token_id: int) -> str:
        self._half = token_id == 0
        return "" if self._half else chr(token_id)

    def flush(self) -> str:
        return "\ufffd" if self._half else ""


def make(*stop: str, include: bool = False, **params: Any) -> RequestStream:
    valid = SamplingParams(
        stop=stop,
        include_stop_str_in_output=include,
        max_tokens=100,
        **params,
    )
    request = ValidGenerateRequest("id", MODEL, (5, 6), valid)
    return RequestStream(request, CharDetokenizer, TimeLedger(), Span(TraceContext.new()))


def push(stream: RequestStream, text: str) -> bool:
    ended = False
    for character in text:
        ended = stream.push_token(0, ord(character))
    return ended


async def read(stream: RequestStream) -> list[Event]:
    return [event async for event in stream.events()]


async def test_what_was_not_read_is_one_delta() -> None:
    stream = make()
    stream.mark_queued(9)
    push(stream, "abc")
    stream.finish(FinishReason.LENGTH)
    assert await read(stream) == [
        Started("id", 2, 9, max_tokens=100),
        Delta("abc", (97, 98, 99)),
        Finished(FinishReason.LENGTH, 3),
    ]


async def test_a_reader_that_keeps_up_gets_every_token() -> None:
    stream = make()
    events = stream.events()
    stream.mark_queued(9)
    assert await anext(events) == Started("id", 2, 9, max_tokens=100)
    for character in "ab":
        push(stream, character)
        assert await anext(events) == Delta(character, (ord(character),))
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.finish(FinishReason.STOP)
    assert await waiting == Finished(FinishReason.STOP, 2)


async def test_end_that_comes_during_a_yield_follows_the_delta() -> None:
    stream = make()
    events = stream.events()
    stream.mark_queued(9)
    push(stream, "a")
    assert await anext(events) == Started("id", 2, 9, max_tokens=100)
    assert await anext(events) == Delta("a", (97,))
    push(stream, "b")
    stream.finish(FinishReason.LENGTH)
    assert [event async for event in events] == [
        Delta("b", (98,)),
        Finished(FinishReason.LENGTH, 2),
    ]


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abSTOP")])
async def test_stop_string_ends_the_stream_with_the_token_that_completed_it(
    include: bool, text: str
) -> None:
    stream = make("STOP", include=include)
    stream.mark_queued(1)
    assert push(stream, "abSTOP")
    _, delta, finished = await read(stream)
    assert delta == Delta(text, tuple(map(ord, "abSTOP")))
    assert finished == Finished(FinishReason.STOP, 6, "STOP")


async def test_held_text_goes_out_at_the_end() -> None:
    stream = make("STOP")
    stream.mark_queued(1)
    assert not push(stream, "abST")
    stream.finish(FinishReason.LENGTH)
    _, delta, finished = await read(stream)
    assert delta.text == "abST"
    assert finished == Finished(FinishReason.LENGTH, 4)


async def test_half_a_character_at_the_end_may_complete_a_stop_string() -> None:
    stream = make("b\ufffd")
    stream.mark_queued(1)
    push(stream, "ab\0")
    stream.finish(FinishReason.LENGTH)
    _, delta, finished = await read(stream)
    assert delta == Delta("a", (97, 98, 0))
    assert finished == Finished(FinishReason.STOP, 3, "b\ufffd")


async def test_admitted_twice_starts_once_and_keeps_its_seed() -> None:
    stream = make()
    stream.mark_queued(9)
    stream.mark_queued(10)
    stream.finish(FinishReason.ABORT)
    assert stream.sampling_params.seed == 9
    assert await read(stream) == [
        Started("id", 2, 9, max_tokens=100),
        Finished(FinishReason.ABORT, 0),
    ]


async def test_an_error_comes_after_what_was_produced() -> None:
    stream = make()
    stream.mark_queued(9)
    push(stream, "a")
    stream.fail(UnavailableError("gone"))
    stream.finish(FinishReason.LENGTH)
    seen = []
    with pytest.raises(UnavailableError, match="gone"):
        async for event in stream.events():
            seen.append(event)
    assert seen == [Started("id", 2, 9, max_tokens=100), Delta("a", (97,))]


async def test_aborted_before_admission_starts_and_finishes() -> None:
    stream = make()
    stream.finish(FinishReason.ABORT)
    assert await read(stream) == [
        Started("id", 2, 0, max_tokens=100),
        Finished(FinishReason.ABORT, 0),
    ]


async def test_a_stop_string_is_not_looked_for_before_min_tokens() -> None:
    stream = make("b", min_tokens=2)
    stream.mark_queued(1)
    assert not push(stream, "bba")
    assert push(stream, "b")
    assert await read(stream) == [
        Started("id", 2, 1, max_tokens=100),
        Delta("bba", (98, 98, 97, 98)),
        Finished(FinishReason.STOP, 4, "b"),
    ]


@pytest.mark.parametrize("asked", [None, 0, 2])
async def test_logprobs_go_to_those_who_asked(asked: int | None) -> None:
    stream = make(logprobs=asked)
    stream.mark_queued(1)
    positions = [TokenLogprobs((97,), (-0.5,), 1), TokenLogprobs((98,), (-1.5,), 3)]
    for token, logprobs in zip(b"ab", positions, strict=True):
        stream.push_token(0, token, logprobs)
    stream.finish(FinishReason.LENGTH)
    delta = (await read(stream))[1]
    assert delta == Delta("ab", (97, 98), () if asked is None else tuple(positions))


async def test_each_of_n_outputs_has_its_own_text_and_end() -> None:
    stream = make("X", n=2)
    stream.mark_queued(9)
    stream.push_token(0, ord("a"))
    stream.push_token(1, ord("b"))
    assert stream.push_token(1, ord("X")), "its text completed a stop string"
    assert not stream.ended
    assert stream.unfinished_outputs == {0: [97]}
    assert not stream.push_token(1, ord("c")), "what comes after its end is ignored"
    stream.push_token(0, ord("d"))
    stream.finish_sequence(1, FinishReason.ABORT)  # too late
    stream.finish_sequence(0, FinishReason.LENGTH)
    assert stream.ended
    assert await read(stream) == [
        Started("id", 2, 9, max_tokens=100),
        Delta("ad", (97, 100), index=0),
        Finished(FinishReason.LENGTH, 2, index=0),
        Delta("b", (98, 88), index=1),
        Finished(FinishReason.STOP, 2, "X", index=1),
    ]


async def test_best_of_shows_the_most_probable_in_the_end() -> None:
    stream = make("X", n=2, best_of=3)
    stream.mark_queued(9)
    for index, character, logprob in ((0, "a", -2.0), (1, "b", -1.0), (2, "c", -3.0)):
        stream.push_token(index, ord(character), TokenLogprobs((ord(character),), (logprob,), 1))
    # The third would have been the best but for its text before its stop string.
    stream.push_token(2, ord("X"), TokenLogprobs((88,), (-0.5,), 1))
    for index in (0, 1):
        assert not stream.ended
        stream.finish_sequence(index, FinishReason.LENGTH)
    assert await read(stream) == [
        Started("id", 2, 9, max_tokens=100),
        Delta("b", (98,), index=0),
        Finished(FinishReason.LENGTH, 1, index=0, cumulative_logprob=-1.0),
        Delta("a", (97,), index=1),
        Finished(FinishReason.LENGTH, 1, index=1, cumulative_logprob=-2.0),
    ]


async def test_texts_of_a_beam_search_come_at_once() -> None:
    stream = make(n=2, best_of=4, use_beam_search=True, temperature=0)
    stream.mark_queued(9)
    assert stream.unfinished_outputs == {}
    logprobs = TokenLogprobs((97,), (-1.5,), 1)
    stream.finish_beams(
        [
            Hypothesis((97,), -1.5, FinishReason.STOP, (logprobs,)),
            Hypothesis((98, 99), -2.5, FinishReason.LENGTH),
        ]
    )
    assert await read(stream) == [
        Started("id", 2, 9, max_tokens=100),
        Delta("a", (97,), index=0),
        Finished(FinishReason.STOP, 1, index=0, cumulative_logprob=-1.5),
        Delta("bc", (98, 99), index=1),
        Finished(FinishReason.LENGTH, 2, index=1, cumulative_logprob=-2.5),
    ]


async def test_an_aborted_beam_search_has_n_empty_outputs() -> None:
    stream = make(n=2, best_of=4, use_beam_search=True, temperature=0)
    stream.mark_queued(9)
    stream.finish(FinishReason.ABORT)
    assert await read(stream) == [
        Started("id", 2, 9, max_tokens=100),
        Finished(FinishReason.ABORT, 0, index=0),
        Finished(FinishReason.ABORT, 0, index=1),
    ]


async def test_log_probabilities_of_the_prompt_come_once() -> None:
    stream = make(prompt_logprobs=0)
    stream.mark_queued(9)
    first, second, third = (TokenLogprobs((token,), (-1.0,), 1) for token in (5, 6, 7))
    stream.push_prompt_logprobs(1, [first, second])
    stream.push_prompt_logprobs(1, [first, second, third])  # again, after a preemption
    stream.push_prompt_logprobs(2, [second])
    stream.finish(FinishReason.LENGTH)
    assert await read(stream) == [
        Started("id", 2, 9, max_tokens=100),
        Delta("", (), prompt_logprobs=(first, second, third)),
        Finished(FinishReason.LENGTH, 0),
    ]
