"""Calls of a batch: which servers it takes, and what it does while one is full or away."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import h11
import pytest

from launch.batch import client as calls
from launch.batch.client import HttpClient, call_all
from launch.batch.files import AnswerFile, BatchRequest, read_answered
from launch.batch.run import run
from quire.contract.errors import ConfigError, QuireError, UnavailableError

Reply = tuple[int, dict[str, str], bytes]


@asynccontextmanager
async def serving(reply: Callable[[str, bytes], Reply | bytes]) -> AsyncIterator[str]:
    """Serve replies by target and body; bytes are sent as they are, whatever was asked."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state, target, body = h11.Connection(h11.SERVER), "", b""
        while True:
            event = state.next_event()
            if event is h11.NEED_DATA:
                state.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Request):
                target = event.target.decode()
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                break
        found = reply(target, body)
        if isinstance(found, bytes):
            writer.write(found)
        else:
            status, headers, content = found
            headers = headers | {"content-length": str(len(content))}
            for event in (
                h11.Response(status_code=status, headers=list(headers.items())),
                h11.Data(data=content),
                h11.EndOfMessage(),
            ):
                writer.write(state.send(event) or b"")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def answers_of(base: str, num_requests: int = 1) -> list[tuple[int, object]]:
    found = []
    requests = [(place, "/v1/completions", b"{}", "") for place in range(num_requests)]
    await call_all(
        HttpClient(base), requests, 2, lambda _, answer: found.append((answer[0], answer[2]))
    )
    return found


@pytest.mark.parametrize(
    "base",
    [
        *("127.0.0.1:8000", "localhost", "", "ftp://a:1", "http://", "http://:8000"),
        *("http://a:x", "http://a:99999", "http://[::1", "http://a:1/v2", "http://a:1/?b=c"),
    ],
)
def test_what_is_no_url_of_a_server_is_refused(base: str) -> None:
    with pytest.raises(ConfigError, match=r"^url: must be http://HOST:PORT or https://HOST:PORT"):
        HttpClient(base)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
async def test_a_url_may_end_as_clients_of_openai_are_given_it(end: str) -> None:
    async with serving(lambda target, _: (200, {}, json.dumps(target).encode())) as base:
        await HttpClient(base + end).check()
        assert await answers_of(base + end) == [(200, "/v1/completions")]


async def test_where_nobody_listens_a_batch_does_not_begin(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=rf"^url: must be .* got {base}: "):
            await HttpClient(base).check()
    with pytest.raises(UnavailableError, match=r"^url: must be where a server listens"):
        await HttpClient(f"unix:{tmp_path / 'none'}").check()


async def test_another_protocol_is_no_server() -> None:
    # An alert of TLS, and the first frame of HTTP/2.
    for first in (b"\x15\x03\x01\x00\x02\x02\x16", b"\0\0\0\x04\0\0\0\0\0", b""):
        async with serving(lambda _, __, first=first: first) as base:
            with pytest.raises(UnavailableError, match=r"^url: must be where a server listens"):
                await HttpClient(base).check()
            with pytest.raises(UnavailableError, match=r"^url: must be where a server listens"):
                await HttpClient(base.replace("http:", "https:")).check()


async def test_a_page_is_no_answer() -> None:
    async with serving(lambda *_: (404, {}, b"<html>")) as base:
        for asking in (HttpClient(base).check(), answers_of(base)):
            with pytest.raises(ConfigError, match=r"^url: must be a server of OpenAI's API, got"):
                await asking


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_is_not_known_is_found_before_the_first_request(status: int) -> None:
    async with serving(lambda *_: (status, {}, b'{"error": "who?"}')) as base:
        with pytest.raises(ConfigError, match=r"^api_key: must be a key of .*who\?"):
            await HttpClient(base, "key").check()


async def test_a_server_that_is_full_or_behind_a_proxy_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "FIRST_WAIT_S", 0.0)
    waiting: list[Reply | bytes] = [
        (429, {"retry-after": "0"}, b"{}"),
        (502, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"<html>Bad gateway"),
        (503, {}, b""),
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{",  # it dies in its answer
        (200, {}, b"7"),
    ]
    async with serving(lambda *_: waiting.pop(0)) as base:
        assert await answers_of(base) == [(200, 7)]
    assert not waiting


async def test_a_server_that_stays_away_ends_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "AWAY_TIMEOUT_S", 0.0)
    async with serving(lambda *_: b"") as base:
        with pytest.raises(UnavailableError, match=r"^the server is away: "):
            await answers_of(base, 3)


def run_to_the_end(
    inputs: Path, outputs: Path, *, overwrite: bool = False, url: str | None = "http://127.0.0.1:9"
) -> int:
    options = {"api_key": "", "num_at_once": 1, "seed": 0, "overwrite": overwrite}
    return run(*(inputs, outputs, None, {"max_model_len": 9_000_000}), url=url, **options)


def test_errors_of_an_earlier_run_are_counted(tmp_path: Path) -> None:
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {}} for name in "ab"
    ]
    inputs.write_text("\n".join(map(json.dumps, lines)))
    # One of another file counts for nothing.
    found = [("a", {"message": "no"}), ("b", None), ("of another", {"message": "no"})]
    outputs.write_text(
        "".join(json.dumps({"custom_id": name, "error": error}) + "\n" for name, error in found)
    )
    assert run_to_the_end(inputs, outputs) == 1
    outputs.write_text("[]\n")
    with pytest.raises(QuireError, match=r"line 1: must be an answer of a batch"):
        run_to_the_end(inputs, outputs)


def test_an_answer_to_half_of_a_surrogate_pair_is_written(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    answers = AnswerFile(path)
    answers.add(BatchRequest("a\ud800", "/v1/completions", b"{}"), 200, "1", {"text": "ö"})
    answers.close()
    assert "a\\ud800" in path.read_text(encoding="utf-8")
    assert read_answered(path) == ({"a\ud800": False}, path.stat().st_size)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(
    "wrong", ["no input", "no JSON", "input as output", "a link to it", "no server", "no cluster"]
)
def test_nothing_is_deleted_before_all_else_is_right(
    wrong: str, overwrite: bool, tmp_path: Path
) -> None:
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}
    inputs.write_text("no JSON" if wrong == "no JSON" else json.dumps(line))
    # The second line was being written.
    outputs.write_text('{"custom_id": "b", "error": null}\n{"id":"batch_r')
    given, taken = inputs, outputs
    if wrong == "no input":
        given = tmp_path / "none"
    elif wrong == "input as output":
        taken = inputs
    elif wrong == "a link to it":
        taken = tmp_path / "link"
        taken.hardlink_to(inputs)
    before = inputs.read_text(), outputs.read_text()
    url = None if wrong == "no cluster" else "http://127.0.0.1:9"
    # The cluster is refused before it starts: the demo model has no such length.
    with pytest.raises(QuireError, match=r"none: No such|line 1: must|^output_file: |^url: |^max_"):
        run_to_the_end(given, taken, overwrite=overwrite, url=url)
    assert (inputs.read_text(), outputs.read_text()) == before


def test_a_line_that_was_being_written_goes_once_nothing_stands_in_the_way(tmp_path: Path) -> None:
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.write_text("")
    whole = '{"custom_id": "b", "error": null}\n'
    for half in ("{", '{"id":"batch_req_1","custom_id":"ö'):
        for before in ("", whole):
            outputs.write_text(before + half)
            assert run_to_the_end(inputs, outputs) == 0
            assert outputs.read_text() == before


@pytest.mark.parametrize("text", ['{"notes": 1}', "a", '{"id": 5}', "[", " "])
def test_one_line_of_something_else_is_left_alone(text: str, tmp_path: Path) -> None:
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.write_text("")
    outputs.write_text(text)
    with pytest.raises(ConfigError, match=r"line 1: must be an answer of a batch; give --overwr"):
        run_to_the_end(inputs, outputs)
    assert outputs.read_text() == text


def test_an_output_that_is_no_file_is_refused(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.write_text("")
    for output, must in ((tmp_path, "a file"), (tmp_path / "a" / "b", "in a directory that exi")):
        with pytest.raises(ConfigError, match=rf"^output_file: must be {must}.* got {output}$"):
            run_to_the_end(inputs, output, overwrite=True)


def test_a_batch_that_begins_anew_leaves_nothing_of_before(tmp_path: Path) -> None:
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.write_text("")
    outputs.write_text("of something else\n")
    assert run_to_the_end(inputs, outputs, overwrite=True) == 0
    assert outputs.read_text() == ""


def test_an_empty_model_or_url_is_refused(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}
    inputs.write_text(json.dumps(line))
    with pytest.raises(ConfigError, match=r"^url: must be http"):
        run_to_the_end(inputs, tmp_path / "out", url="")
    with pytest.raises(ConfigError, match=r"^model: must not be empty, got ''$"):
        run(*(inputs, tmp_path / "out", "", {}), url=None, api_key="", num_at_once=1, seed=0)
