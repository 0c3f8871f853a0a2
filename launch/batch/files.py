"""The lines of a batch: requests in, answers out, and which are there already.

https://platform.openai.com/docs/guides/batch: a line of input is an object of `custom_id`,
`method`, `url` and `body`; one of output has the `custom_id` and the `response`, or an `error`.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from quire import finite_json
from quire.contract.errors import ConfigError

URLS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
)
# Whose bodies may have a seed.
_DRAWING = URLS[:2]
# Of every line that AnswerFile writes.
_ID = "batch_req_"
_BEGINNING = f'{{"id":"{_ID}'.encode()


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A line of input.

    Attributes:
        custom_id: by which its answer is found; no other line has it.
        url: path of the API.
        body: JSON.
    """

    custom_id: str
    url: str
    body: bytes


def read_requests(path: Path, seed: int) -> list[BatchRequest]:
    """Return the requests of a file; empty lines are skipped.

    A request that brings no seed is given one, of its custom_id: it is answered alike whenever, and
    however often, it is run.

    Args:
        path: of the file.
        seed: for requests that bring none; another one has other answers.

    Raises:
        ConfigError: it cannot be read, or a line is no such request; names the line.
    """
    requests, places = [], dict[str, int]()
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            request = _parse(line, seed)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
        if request.custom_id in places:
            raise ConfigError(
                f"{path}, line {number}: custom_id: must be of one line, got "
                f"{request.custom_id!r} in line {places[request.custom_id]}, too"
            )
        places[request.custom_id] = number
        requests.append(request)
    return requests


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _parse(line: bytes, seed: int) -> BatchRequest:
    try:
        fields = finite_json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("must be a JSON object, got another text") from None
    if not isinstance(fields, dict):
        raise ValueError("must be a JSON object, got another value")
    custom_id, method, url = (fields.get(name) for name in ("custom_id", "method", "url"))
    body = fields.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise ValueError("custom_id: must be a string of at least 1 character")
    if method != "POST":
        raise ValueError(f"method: must be 'POST', got {method!r}")
    if url not in URLS:
        raise ValueError(f"url: must be one of {', '.join(URLS)}, got {url!r}")
    if not isinstance(body, dict):
        raise ValueError("body: must be an object")
    if body.get("stream"):
        raise ValueError("body.stream: must be false, an answer is one line")
    if url in _DRAWING and body.get("seed") is None:
        digest = sha256(f"{seed}\0{custom_id}".encode(errors="surrogatepass")).digest()
        body = {**body, "seed": int.from_bytes(digest[:6])}
    return BatchRequest(custom_id, url, json.dumps(body).encode())


def check_output(path: Path, input_file: Path) -> None:
    """Check that answers can go to a file, which is not written to.

    Args:
        path: of the file, there or not.
        input_file: of requests, which have to stay.

    Raises:
        ConfigError: they cannot.
    """
    is_input = path.resolve() == input_file.resolve()
    with suppress(OSError):
        is_input = is_input or path.samefile(input_file)
    if is_input:
        raise ConfigError(f"output_file: must be another than input_file, got {path}")
    if path.exists() and not path.is_file():
        raise ConfigError(f"output_file: must be a file, got {path}")
    if not path.parent.is_dir():
        raise ConfigError(f"output_file: must be in a directory that exists, got {path}")


def read_answered(path: Path) -> tuple[dict[str, bool], int]:
    """Return whose answers a file of output has, and where they end.

    A line that was being written, which may be behind them, is left as it is.

    Returns:
        By custom_id, whether the answer is an error; and how many bytes the whole lines have.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            found, end = dict[str, bool](), 0
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    # Behind answers it is one; alone it may be all of a file of something else.
                    if number == 1 and line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
                        raise _no_answer(path, number)
                    break
                try:
                    answer = json.loads(line)
                    found[str(answer["custom_id"])] = answer.get("error") is not None
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    raise _no_answer(path, number) from None
                end += len(line)
    except FileNotFoundError:
        return {}, 0
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    return found, end


def _no_answer(path: Path, number: int) -> ConfigError:
    return ConfigError(
        f"{path}, line {number}: must be an answer of a batch; give --overwrite, or another file"
    )


class AnswerFile:
    """Appends answers to a file: a line is there whole, or is cut off by the next run.

    Args:
        path: of the file.

    Raises:
        ConfigError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            # Half of a surrogate pair, which JSON may have, stays as JSON spells it.
            self._file: TextIO = path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None

    def add(self, request: BatchRequest, status: int, request_id: str, body: Any) -> None:
        """Write the answer of a request.

        Args:
            request: that was answered.
            status: of HTTP.
            request_id: as the server knew it.
            body: of the answer.
        """
        is_error = status >= 400
        response = {"status_code": status, "request_id": request_id, "body": body}
        error = body.get("error", body) if is_error and isinstance(body, dict) else None
        line = {
            "id": f"{_ID}{request_id}",
            "custom_id": request.custom_id,
            "response": response,
            "error": error if is_error else None,
        }
        self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def cut(self, end: int) -> None:
        """Leave out what stands behind so many bytes; what is added follows them."""
        self._file.truncate(end)

    def close(self) -> None:
        """Have the disk hold what was written."""
        os.fsync(self._file.fileno())
        self._file.close()
