"""What events report of their text, of several outputs, and again where their stream was cut."""

import pytest

from quire.contract.chat import ChatInput, ChatMessage, Tool
from quire.contract.inputs import ReceivedOutput
from quire.contract.outputs import Completion, Delta, Event, Finished, FinishReason, Started
from quire.contract.sampling_params import SamplingParams
from quire.sdk.collect import Collector
from quire.sdk.resume import ResumableStream
from router.chat.parsers.formats import OutputFormat
from router.chat.reader import OutputReader
from router.requests.parsed import EventParser
from router.text.tokenize import Tokenizer
from tests.fakes.small_tokenizers import byte_level

BACKEND = byte_level()
CODEC = Tokenizer(BACKEND, num_threads=1)
CALL = '<tool_call>{"name": "f", "arguments": {"x": "中"}}</tool_call>'
TEXTS = (f"<think>Hm</think>Yes 😀{CALL}\n<tool_ca", f"{CALL}\n{CALL}", "no <call")
CHAT = ChatInput((ChatMessage("user", "x"),), SamplingParams(n=3), (Tool("f"),), parse_output=True)
STARTED = Started("mine", 1, 5, prompt_token_ids=tuple(BACKEND.encode("x").ids))
# Characters that wait behind the tokens, as in case that they become a stop string.
NUM_HELD = 2


def events_of(text: str, index: int) -> list[Event]:
    """The events of an output: a delta for each token, whose text comes a little later."""
    detokenizer = CODEC.detokenizer(STARTED.prompt_token_ids, False)
    found: list[Event] = []
    known = sent = ""
    for token_id in BACKEND.encode(text).ids:
        known += detokenizer.push(token_id)
        new = known[len(sent) : max(len(sent), len(known) - NUM_HELD)]
        sent += new
        found.append(Delta(new, (token_id,), index=index))
    found.append(Delta(text[len(sent) :], (), index=index))
    found.append(Finished(FinishReason.STOP, len(found) - 1, index=index))
    return found


def parser(received: tuple[ReceivedOutput, ...] = ()) -> EventParser:
    output = OutputFormat("hermes", "qwen3")
    return EventParser(
        CHAT,
        lambda chat: OutputReader(output, chat, CODEC.token_text, ()),
        lambda prompt: CODEC.detokenizer(prompt, False),
        received,
    )


def completions(events: list[Event]) -> list[Completion]:
    collector = Collector(is_parsed=True)
    for event in events:
        collector.add(event)
    return collector.completions()


# One output after the other, and in turn.
OUTPUTS = [events_of(text, index) for index, text in enumerate(TEXTS)]
IN_TURN = sorted(
    ((place, event) for each in OUTPUTS for place, event in enumerate(each)),
    key=lambda each: each[0],
)
ORDERS = {
    "sequential": [STARTED, *(event for each in OUTPUTS for event in each)],
    "interleaved": [STARTED, *(event for _, event in IN_TURN)],
}


@pytest.mark.parametrize("order", ORDERS)
async def test_cut_anywhere_events_say_the_same(order: str) -> None:
    events = ORDERS[order]
    once = parser()
    whole = [await once.take(event) for event in events]
    first, second, third = completions(whole)
    assert (first.reasoning, first.content) == ("Hm", "Yes 😀\n<tool_ca")
    assert [call.arguments for call in first.tool_calls] == ['{"x": "中"}']
    assert [(call.name, call.arguments) for call in second.tool_calls] == [("f", '{"x": "中"}')] * 2
    assert len({call.id for each in (first, second) for call in each.tool_calls}) == 3
    assert (third.content, third.tool_calls) == ("no <call", ())
    for cut in range(1, len(events)):
        stream = ResumableStream(CHAT, 1, 60.0)
        for event in whole[:cut]:
            stream.take(event)
        again = parser(stream.request.received)
        await again.take(STARTED)
        rest = [await again.take(event) for event in events[cut:]]
        assert completions(whole[:cut] + rest) == completions(whole), cut


@pytest.mark.parametrize("ending", ["", CALL, "<tool_c"])
async def test_what_is_long_is_read_in_slices(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    text = f"<think>Hm</think>{'<tool_call>' * 40} and {CALL}{ending}"
    read: list[int] = []
    feed = OutputReader.read

    def spy(reader: OutputReader, index: int, text: str, *args: object, **named: object) -> object:
        read.append(len(text))
        return feed(reader, index, text, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(OutputReader, "read", spy)
    monkeypatch.setattr("router.requests.parsed.CHARS_AT_ONCE", 7)
    events = [STARTED, *events_of(text, 0)]
    once = parser()
    whole = [await once.take(event) for event in events]
    cut = len(events) - 2
    stream = ResumableStream(CHAT, 1, 60.0)
    for event in whole[:cut]:
        stream.take(event)
    again = parser(stream.request.received)
    read.clear()
    await again.take(STARTED)
    assert max(read) <= 14
    rest = [await again.take(event) for event in events[cut:]]
    assert completions(whole[:cut] + rest)[0] == completions(whole)[0]
