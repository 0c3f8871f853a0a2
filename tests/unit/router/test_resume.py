"""A stream that goes on after what its client has from another one."""

import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import GenerateInput, ReceivedOutput, ResumeInput
from quire.contract.outputs import (
    Delta,
    Finished,
    FinishReason,
    Hypothesis,
    Started,
    TokenLogprobs,
)
from router.requests.stream import RequestStream
from tests.unit.router.test_stream import make, push, read

STARTED = Started("id", 2, 9, "5f7a", max_tokens=100)
BEAMS = {"n": 2, "best_of": 4, "use_beam_search": True, "temperature": 0}


async def resume(
    stream: RequestStream, *received: ReceivedOutput, num_prompt_logprobs: int = 0
) -> RequestStream:
    request = GenerateInput("", stream.sampling_params)
    await stream.take_over(ResumeInput(request, 9, "5f7a", "", received, num_prompt_logprobs))
    stream.mark_queued(9, "5f7a")
    return stream


async def test_text_held_back_for_a_stop_string_is_sent_after_the_seam() -> None:
    stream = await resume(make("bcd"), ReceivedOutput(0, (97, 98, 99), 1))
    assert stream.unfinished_outputs == {0: [97, 98, 99]}
    push(stream, "x")
    stream.finish(FinishReason.LENGTH)
    assert await read(stream) == [
        STARTED,
        Delta("bcx", (120,)),
        Finished(FinishReason.LENGTH, 4),
    ]


async def test_a_stop_string_is_found_across_the_seam() -> None:
    stream = await resume(make("bcd"), ReceivedOutput(0, (97, 98, 99), 1))
    assert push(stream, "d")
    assert await read(stream) == [
        STARTED,
        Delta("", (100,)),
        Finished(FinishReason.STOP, 4, "bcd"),
    ]


async def test_outputs_that_have_ended_stay_so_and_others_go_on() -> None:
    stream = await resume(
        make(n=3, logprobs=0),
        ReceivedOutput(0, (), 5, ended=True),
        ReceivedOutput(2, (97,), 1, cumulative_logprob=-0.5),
    )
    assert {index: list(ids) for index, ids in stream.unfinished_outputs.items()} == {
        1: [],
        2: [97],
    }
    position = TokenLogprobs((98,), (-0.25,), 1)
    for index in (1, 2):
        stream.push_token(index, 98, position)
        stream.finish_sequence(index, FinishReason.LENGTH)
    assert await read(stream) == [
        STARTED,
        Delta("b", (98,), (position,), 1),
        Finished(FinishReason.LENGTH, 1, index=1, cumulative_logprob=-0.25),
        Delta("b", (98,), (position,), 2),
        Finished(FinishReason.LENGTH, 2, index=2, cumulative_logprob=-0.75),
    ]


async def test_an_ended_output_alone_starts_no_other_anew() -> None:
    stream = await resume(make(n=2), ReceivedOutput(1, ended=True))
    assert {index: list(ids) for index, ids in stream.unfinished_outputs.items()} == {0: []}


async def test_log_probabilities_of_the_prompt_are_not_repeated() -> None:
    stream = await resume(make(prompt_logprobs=0), num_prompt_logprobs=2)
    positions = [TokenLogprobs((i,), (-float(i),), 1) for i in range(1, 4)]
    stream.push_prompt_logprobs(1, positions)
    stream.finish(FinishReason.ABORT)
    assert await read(stream) == [
        STARTED,
        Delta("", (), (), 0, (positions[2],)),
        Finished(FinishReason.ABORT, 0),
    ]


def find_beams(stream: RequestStream) -> None:
    logprobs = (TokenLogprobs((98,), (-1.0,), 1),) * 2
    stream.finish_beams(
        [
            Hypothesis((97,), -1.5, FinishReason.STOP),
            Hypothesis((98, 98), -2.0, FinishReason.LENGTH, logprobs),
        ]
    )


@pytest.mark.parametrize("num_tokens", [0, 1, 2])
async def test_of_beams_comes_what_was_not_received(num_tokens: int) -> None:
    received = ReceivedOutput(1, (98,) * num_tokens, num_tokens)
    stream = make(**BEAMS, logprobs=0)
    await resume(stream, ReceivedOutput(0, (), 1, ended=True), received)
    assert stream.submission(1).outputs is None, "computed anew"
    find_beams(stream)
    started, *rest = await read(stream)
    assert started == STARTED
    left = 2 - num_tokens
    position = TokenLogprobs((98,), (-1.0,), 1)
    deltas = [Delta("b" * left, (98,) * left, (position,) * left, 1)] if left else []
    assert rest == [
        *deltas,
        Finished(FinishReason.LENGTH, 2, index=1, cumulative_logprob=-2.0),
    ]


@pytest.mark.parametrize("received", [ReceivedOutput(1, (97,), 1), ReceivedOutput(1, (98,), 3)])
async def test_of_beams_nothing_else_can_have_been_received(received: ReceivedOutput) -> None:
    stream = await resume(make(**BEAMS), received)
    find_beams(stream)
    with pytest.raises(InvalidRequestError, match="received of output 1: "):
        await read(stream)
