"""`quire run`: a chat in the terminal, with a cluster of its own and with one that runs."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from launch.conversation import Conversation, typed_lines
from quire import LLM, Client, SamplingParams
from quire.contract.outputs import Delta

QUESTIONS = ["What is a list?", "And a tuple?"]
OPTIONS = ("--temperature", "0", "--max-tokens", "12", "--system", "Be brief.")
PARAMS = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(kv_cache_gib=0.03125, num_threads=1) as llm:
        yield llm


def expected(llm: LLM) -> str:
    """What a chat of both questions prints."""
    messages, printed = [{"role": "system", "content": "Be brief."}], ""
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        [answer] = llm.chat(messages, PARAMS, use_tqdm=False)
        messages.append({"role": "assistant", "content": answer.outputs[0].text})
        printed += answer.outputs[0].text + "\n"
    return printed


def run(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch.cli.main", "run", *options]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=False
    )


def test_lines_of_a_pipe_are_answered_in_turn(llm: LLM) -> None:
    typed = "\n\n".join(QUESTIONS) + "\n/exit\nnever asked\n"
    own = run(typed, *OPTIONS, "--kv-cache-gib", "0.03125", "--num-threads", "1")
    assert (own.returncode, own.stderr) == (0, "")
    assert own.stdout == expected(llm)
    other = run("\n".join(QUESTIONS), *OPTIONS, "--target", str(llm.target))
    assert (other.returncode, other.stdout) == (0, own.stdout)
    unknown = run("", "someone/none")
    assert unknown.returncode == 1
    assert "quire pull someone/none DIR" in unknown.stderr


def test_an_interrupt_stops_an_answer_and_not_the_chat(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(llm.target) as client:
        stream_chat = client.stream_chat

        def interrupted(*arguments: object) -> Iterator[object]:
            for event in stream_chat(*arguments):  # type: ignore[arg-type]
                yield event
                if isinstance(event, Delta) and event.text:
                    raise KeyboardInterrupt

        long = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        conversation = Conversation(client, long)
        monkeypatch.setattr(client, "stream_chat", interrupted)
        assert conversation.hold(iter(QUESTIONS[:1]))
        assert capsys.readouterr().out.endswith(" [stopped]\n")
        monkeypatch.undo()
        said = [each["role"] for each in conversation.messages]
        assert said == ["user", "assistant"]
        # One that is too long for the model is refused, and forgotten.
        assert not conversation.hold(iter(["word " * 10_000]))
        assert "error: " in capsys.readouterr().err
        assert len(conversation.messages) == 2
        conversation._params = PARAMS
        assert conversation.hold(iter(QUESTIONS[1:]))
        assert len(conversation.messages) == 4


def test_typing_at_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    keys: list[object] = ["hello", KeyboardInterrupt(), "again", EOFError()]

    def read(prompt: str) -> str:
        assert prompt == "> "
        key = keys.pop(0)
        if isinstance(key, BaseException):
            raise key
        return str(key)

    assert list(typed_lines(Terminal(), read)) == ["hello", "again"]  # type: ignore[arg-type]
    assert "/exit ends" in capsys.readouterr().out
