"""What is typed into `quire run`: commands go to nobody, all else goes to the model."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from launch.conversation import Conversation
from quire import SamplingParams
from quire.contract.outputs import Delta, Event

SYSTEM = {"role": "system", "content": "Be brief."}


class FakeClient:
    """Has the same answer for everybody.

    Attributes:
        asked: messages of each call.
    """

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []

    def stream_chat(
        self, messages: Sequence[dict[str, Any]], params: SamplingParams
    ) -> Iterator[Event]:
        self.asked.append([dict(each) for each in messages])
        yield Delta("so", (1,))


class Talk:
    """A conversation, and what it has shown."""

    def __init__(self, system: str = "") -> None:
        self.client: Any = FakeClient()
        self.out, self.err = io.StringIO(), io.StringIO()
        self.conversation = Conversation(
            self.client, SamplingParams(), system, out=self.out, err=self.err
        )

    def hold(self, *lines: str) -> bool:
        return self.conversation.hold(iter(lines))

    @property
    def asked(self) -> list[list[dict[str, Any]]]:
        asked: list[list[dict[str, Any]]] = self.client.asked
        return asked


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("command", ["/help", "/?", "/clear", "/x", "/helpme", "  /help \n"])
def test_a_command_is_neither_asked_nor_remembered(command: str) -> None:
    talk = Talk("Be brief.")
    assert talk.hold(command)
    assert talk.asked == []
    assert talk.conversation.messages == [SYSTEM]


def test_help_lists_the_commands() -> None:
    talk = Talk()
    talk.hold("/help")
    shown = talk.out.getvalue()
    assert [line.split()[0] for line in shown.splitlines()] == ["/clear", "/help", "/exit"]
    talk.hold("/?")
    assert talk.out.getvalue() == 2 * shown
    assert not talk.err.getvalue()


def test_an_unknown_command_is_one_line() -> None:
    talk = Talk()
    assert talk.hold("/x")
    assert talk.err.getvalue() == "error: /x is no command, /help lists them\n"
    assert not talk.out.getvalue()


@pytest.mark.parametrize("system", [[], [SYSTEM]])
def test_what_was_said_is_forgotten_but_what_the_model_is_told_first(
    system: list[dict[str, str]],
) -> None:
    talk = Talk(system[0]["content"] if system else "")
    assert talk.hold("a", "b", "/clear", "c", "d")
    assert talk.asked == [
        [*system, user("a")],
        [*system, user("a"), assistant("so"), user("b")],
        [*system, user("c")],
        [*system, user("c"), assistant("so"), user("d")],
    ]
    assert talk.out.getvalue() == 4 * "so\n"
    assert not talk.err.getvalue()


def test_clearing_twice_takes_nothing_of_what_it_is_told_first() -> None:
    talk = Talk("Be brief.")
    assert talk.hold("/clear", "a", "/clear", "b")
    assert talk.asked == [[SYSTEM, user("a")], [SYSTEM, user("b")]]


@pytest.mark.parametrize("text", ["/usr/bin/env: what is it?", "/help me, please", "1/2", "a /x"])
def test_a_text_with_a_slash_is_asked(text: str) -> None:
    talk = Talk()
    assert talk.hold(text)
    assert talk.asked == [[user(text)]]


def test_nothing_behind_the_end_is_read() -> None:
    talk = Talk()
    assert talk.hold("a", " /exit ", "b", "/x")
    assert talk.asked == [[user("a")]]
    assert not talk.err.getvalue()
