"""A conversation in the terminal: lines in, answers out as they come."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TextIO

from launch.standard_streams import open_stdout
from quire.contract.errors import InvalidRequestError, QuireError
from quire.contract.outputs import Delta
from quire.contract.sampling_params import SamplingParams
from quire.sdk.client import Client

EXIT = "/exit"
_HELP = f"""\
/clear  forget what was said
/help   show this
{EXIT}   end, as Ctrl-D does; Ctrl-C stops an answer
"""
_COMMAND = re.compile(r"/[a-z?]+")


class Conversation:
    """Asks a model what its user types, with all that was said before.

    Args:
        client: of the model's cluster.
        params: for every answer.
        system: what the model is told first; "" for nothing.
        out: where answers go.
        err: where errors go.

    Raises:
        ConfigError: answers have nowhere to go.
    """

    def __init__(
        self,
        client: Client,
        params: SamplingParams,
        system: str = "",
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self._client, self._params = client, params
        self._out, self._err = out or open_stdout(), err or sys.stderr
        self.messages: list[dict[str, Any]] = []
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages += self._system

    def hold(self, lines: Iterator[str]) -> bool:
        """Answer each line, until one is /exit or there are no more.

        Returns:
            False if the last line could not be answered.
        """
        answered = True
        for line in lines:
            text = line.strip()
            if text == EXIT:
                break
            if _COMMAND.fullmatch(text):
                self._obey(text)
            elif text:
                answered = self._answer(text)
        return answered

    def _obey(self, command: str) -> None:
        if command in ("/help", "/?"):
            self._write(_HELP)
        elif command == "/clear":
            self.messages[:] = self._system
        else:
            print(f"error: {command} is no command, /help lists them", file=self._err, flush=True)

    def _answer(self, text: str) -> bool:
        """Ask, and show the answer; Ctrl-C ends it, and what has come of it stands."""
        self.messages.append({"role": "user", "content": text})
        parts: list[str] = []
        try:
            with closing(self._client.stream_chat(self.messages, self._params)) as stream:
                for event in stream:
                    if isinstance(event, Delta):
                        parts.append(event.text)
                        self._write(event.text)
        except KeyboardInterrupt:
            self._write(" [stopped]")
        except QuireError as error:
            self._write("\n" if parts else "")
            print(f"error: {error.message}", file=self._err, flush=True)
            # What was refused would be refused in every later turn, too.
            self.messages.pop()
            if not isinstance(error, InvalidRequestError):
                raise
            return False
        self._write("\n")
        self.messages.append({"role": "assistant", "content": "".join(parts)})
        return True

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def typed_lines(
    stdin: TextIO | None = None, read: Callable[[str], str] = input, prompt: str = "> "
) -> Iterator[str]:
    """Yield what the user types, with a prompt and line editing where it is a terminal.

    Ctrl-C drops the line that is being typed; Ctrl-D ends.
    """
    stdin = stdin or sys.stdin
    if stdin is None:  # closed by whoever started this
        return
    if not stdin.isatty():
        yield from stdin
        return
    import readline  # noqa: F401  (gives `input` its line editing)

    while True:
        try:
            yield read(prompt)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print(f"\n(Ctrl-D or {EXIT} ends)")
