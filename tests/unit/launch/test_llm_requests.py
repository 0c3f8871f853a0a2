"""Requests of a script that ends: a thread that nobody waits for has nobody to tell."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from launch import llm_requests
from launch.llm_requests import run_all

MESSAGE = "cannot schedule new futures after interpreter shutdown"


class EndedPool(ThreadPoolExecutor):
    """A pool of an interpreter that ends, whose main thread still waits for others."""

    def submit(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(MESSAGE)


class WaitedError(Exception):
    """What waits for the end of the process, in the place of waiting."""


class Client:
    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


def ended_in(monkeypatch: pytest.MonkeyPatch, *, daemon: bool) -> BaseException:
    """Return what run_all ends with in a thread, when no pool takes work any more."""
    found: list[BaseException] = []

    def wait() -> None:
        raise WaitedError

    def call() -> None:
        wanted: Any = [(None, None, 0)]
        client: Any = Client
        try:
            run_all(client, wanted, include_time_breakdown=False, use_tqdm=False)
        except BaseException as error:
            found.append(error)

    monkeypatch.setattr(llm_requests, "ThreadPoolExecutor", EndedPool)
    monkeypatch.setattr(llm_requests, "_wait_for_the_end", wait)
    thread = threading.Thread(target=call, daemon=daemon)
    thread.start()
    thread.join()
    return found[0]


def test_a_daemon_thread_waits_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(ended_in(monkeypatch, daemon=True), WaitedError)


def test_a_thread_that_is_waited_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(ended_in(monkeypatch, daemon=False)) == MESSAGE


def test_the_words_are_those_of_python() -> None:
    """A thread that is joined at the end submits when the main thread has none to wait for."""
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor
from launch.llm_requests import _is_of_exit

def late():
    threading.main_thread().join()
    try:
        ThreadPoolExecutor(1).submit(print)
    except RuntimeError as error:
        print(_is_of_exit(error))

threading.Thread(target=late).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True\n", done.stderr
