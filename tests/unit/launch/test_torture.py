"""What `quire torture` makes of answers, events and processes, without a server."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from launch.torture.answers import Answer, Cut, Received
from launch.torture.comparison import Verdict, compare
from launch.torture.errors import RefusedError, UnreadableError
from launch.torture.events import MAX_EVENT_BYTES, Event, EventReader
from launch.torture.processes import Victims, signal_named
from launch.torture.questions import families, longer, make_questions
from launch.torture.server import Api, api_named
from launch.torture.suite import Settings
from quire.contract.errors import ConfigError

REFERENCE = Answer("abcdefgh", (1, 2, 3, 4, 5, 6, 7, 8), (-0.5,) * 8, "length")
WITHOUT_TOKENS = replace(REFERENCE, tokens=(), logprobs=())


def answer(*tokens: int) -> Answer:
    """As the reference would be with other tokens."""
    text = "".join(chr(ord("a") - 1 + token) for token in tokens)
    return Answer(text, tokens, (-0.5,) * len(tokens), "length")


@pytest.mark.parametrize(
    ("got", "cuts", "verdict", "position", "detail"),
    [
        (REFERENCE, (), Verdict.EQUAL, None, ""),
        (answer(1, 2, 9, 4, 5, 6, 7, 8), (), Verdict.CHANGED, 2, "token 2: 3, got 9"),
        (answer(1, 2, 3), (), Verdict.CHANGED, 3, "token 3: 4, got the end"),
        (answer(*range(1, 10)), (), Verdict.CHANGED, 8, "token 8: the end, got 9"),
        (
            replace(REFERENCE, text="abcdefgH"),
            *((), Verdict.CHANGED, 8, "the same tokens, character 7: 'h', got 'H'"),
        ),
        (
            replace(REFERENCE, finish_reason="stop"),
            *((), Verdict.CHANGED, 8, "finish_reason: length, got stop"),
        ),
        # A stream that broke and went on as it should.
        (REFERENCE, (Cut(3, 3),), Verdict.EQUAL, None, ""),
        (
            answer(1, 2, 3, 2, 3, 4, 5, 6, 7, 8),
            *((Cut(3, 3),), Verdict.REPEATED, 1, "token 1: 2 tokens repeated"),
        ),
        (answer(1, 2, 3, 6, 7, 8), (Cut(3, 3),), Verdict.LOST, 3, "token 3: 2 tokens lost"),
        (answer(1, 2, 3, 4, 5), (Cut(3, 3),), Verdict.LOST, 5, "token 5: 3 tokens lost"),
        # The second break of two.
        (
            answer(1, 2, 3, 4, 5, 5, 6, 7, 8),
            *((Cut(2, 2), Cut(5, 5)), Verdict.REPEATED, 4, "token 4: 1 token repeated"),
        ),
        (answer(1, 2, 3, 9, 9), (Cut(3, 3),), Verdict.CHANGED, 3, "token 3: 4, got 9"),
        (answer(1, 9, 3, 4), (Cut(3, 3),), Verdict.CHANGED, 1, "token 1: 2, got 9"),
    ],
)
def test_what_differs_is_named(
    got: Answer, cuts: tuple[Cut, ...], verdict: Verdict, position: int | None, detail: str
) -> None:
    outcome = compare("q", REFERENCE, got, cuts)
    assert (outcome.verdict, outcome.position, outcome.detail) == (verdict, position, detail)
    assert outcome.is_same is (verdict is Verdict.EQUAL)


def test_without_tokens_characters_are_compared() -> None:
    outcome = compare("q", WITHOUT_TOKENS, replace(WITHOUT_TOKENS, text="abXdefgh"))
    assert (outcome.verdict, outcome.position) == (Verdict.CHANGED, 2)
    assert outcome.detail == "character 2: 'cdefgh', got 'Xdefgh'"
    repeated = replace(WITHOUT_TOKENS, text="abcbcdefgh")
    outcome = compare("q", WITHOUT_TOKENS, repeated, (Cut(3, 0),))
    assert outcome.detail == "character 1: 2 characters repeated"
    # One has tokens and the other none.
    assert compare("q", REFERENCE, WITHOUT_TOKENS).verdict is Verdict.EQUAL


def test_log_probabilities_are_compared_to_where_tokens_differ() -> None:
    logprobs = (-0.5, -0.5, -0.25, -0.5, -0.75, -0.5, -0.5, -0.5)
    same = compare("q", REFERENCE, replace(REFERENCE, logprobs=logprobs))
    assert same.verdict is Verdict.EQUAL
    assert not same.is_same
    assert same.logprobs.num_compared == 8
    assert (same.logprobs.num_differing, same.logprobs.largest_difference) == (2, 0.25)
    other = replace(answer(1, 2, 3, 9), logprobs=(*logprobs[:3], -9.0))
    found = compare("q", REFERENCE, other).logprobs
    assert (found.num_compared, found.num_differing) == (3, 1)
    assert compare("q", REFERENCE, WITHOUT_TOKENS).logprobs.num_compared == 0
    no_number = replace(REFERENCE, logprobs=(float("nan"),) * 8)
    again = replace(REFERENCE, logprobs=tuple(float("nan") for _ in range(8)))
    assert compare("q", no_number, again).is_same
    assert compare("q", REFERENCE, no_number).logprobs.num_differing == 8


STREAM = (
    b'id: 1\r\ndata: {"a": "\xe2\x80\xa8"}\r\n\r\n: waits\n\n'
    b"id: 2\ndata:b\ndata: c\n\ndata: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_read_however_their_bytes_come(size: int) -> None:
    reader = EventReader()
    pieces = (STREAM[start : start + size] for start in range(0, len(STREAM), size))
    events = [event for piece in pieces for event in reader.feed(piece)]
    # U+2028 is no end of a line.
    expected = [Event('{"a": "\u2028"}', "1"), Event("b\nc", "2"), Event("[DONE]", None)]
    assert events == expected


def test_events_without_end_are_refused() -> None:
    for line in (b"data: " + b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"):
        reader = EventReader()
        with pytest.raises(UnreadableError, match="must have at most"):
            for _ in range(MAX_EVENT_BYTES // 1000 + 1):
                reader.feed(line)
    with pytest.raises(UnreadableError, match="must be UTF-8"):
        EventReader().feed(b"data: \xff\n")


def test_what_no_server_should_send_is_an_error() -> None:
    received = Received()
    for data in ("{", "[]", "3", '{"choices": 3}', '{"choices": [[]]}', "[" * 100_000):
        with pytest.raises(UnreadableError, match="must be one of OpenAI's API"):
            received.take(Event(data, None))
    with pytest.raises(RefusedError, match="error event: no room"):
        received.take(Event('{"error": {"message": "no room"}}', None))
    assert not received.is_whole


def test_questions_are_those_of_their_seed() -> None:
    def make(seed: int) -> object:
        rng = random.Random(seed)
        return make_questions(
            rng, 24, max_words=100, max_tokens=8, with_seeds=True, with_top_k=True
        )

    questions = make_questions(
        random.Random(3), 24, max_words=100, max_tokens=8, with_seeds=True, with_top_k=False
    )
    assert make(3) == make(3) != make(4)
    assert len(set(questions)) == 24
    assert sum(question.seed is not None for question in questions) == 12
    assert max(len(question.prompt.split()) for question in questions) <= 100
    found = families(questions)
    assert [len(family) for family in found] == [4, 4, 4]
    for family in found:
        first_words = {question.prompt.split()[0] for question in family}
        assert len(first_words) == 1
    for question in questions:
        after = longer(random.Random(0), question, 200)
        assert after.prompt.startswith(f"{question.prompt} ")


@pytest.fixture
def process() -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_only_named_processes_are_killed(process: "subprocess.Popen[bytes]") -> None:
    for pid in (-1, 0, 1, os.getpid()):
        with pytest.raises(ConfigError, match=f"must be the pid of a server's process, got {pid}"):
            Victims([process.pid, pid], signal.SIGKILL)
    with pytest.raises(ConfigError, match="of a process that runs, got 999999999"):
        Victims([999999999], signal.SIGKILL)
    assert process.poll() is None
    with Victims([process.pid, process.pid], signal_named("term")) as victims:
        assert victims.num_left == 1
        assert victims.kill_next() == process.pid
        assert process.wait() == -signal.SIGTERM
        assert victims.num_left == 0


def test_a_number_that_another_process_may_have_is_not_signalled(
    process: "subprocess.Popen[bytes]",
) -> None:
    with Victims([process.pid], signal.SIGKILL) as victims:
        process.kill()
        process.wait()
        assert victims.kill_next() is None


def test_what_was_stopped_runs_again(process: "subprocess.Popen[bytes]") -> None:
    with Victims([process.pid], signal_named("SIGSTOP")) as victims:
        victims.kill_next()
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    assert os.WIFCONTINUED(os.waitpid(process.pid, os.WCONTINUED)[1])


def test_settings_out_of_bounds_are_refused_by_name() -> None:
    url = "http://127.0.0.1:8000"
    assert Settings(f"{url}/").base_url == Settings(f"{url}/v1/").base_url == f"{url}/v1"
    for options, message in (
        ({"url": "127.0.0.1:8000"}, r"^URL: must begin with http"),
        ({"num_questions": 0}, r"^questions: must be in \[1, 512\], got 0$"),
        ({"max_tokens": 4097}, r"^max-tokens: must be in \[1, 4096\], got 4097$"),
        ({"timeout_s": 0.0}, r"^timeout-s: "),
        ({"pressure_tokens": -1}, r"^pressure-tokens: "),
        ({"max_model_len": 5}, r"^max-model-len: must be in \[128, "),
        ({"scenarios": ("all",)}, r"^scenario: must be of alone, in company, .*, got 'all'$"),
    ):
        with pytest.raises(ConfigError, match=message):
            Settings(**{"url": url, **options})  # type: ignore[arg-type]
    assert api_named("chat") is Api.CHAT
    with pytest.raises(ConfigError, match=r"^api: must be completions or chat, got 'text'$"):
        api_named("text")
    with pytest.raises(ConfigError, match=r"^signal: must be the name of a signal"):
        signal_named("9")
