"""A batch from its file of requests to its file of answers."""

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from launch import preflight
from launch.batch.client import Answer, HttpClient, call_all
from launch.batch.files import (
    AnswerFile,
    BatchRequest,
    check_output,
    read_answered,
    read_requests,
)
from launch.cluster.config import ClusterConfig, embedded_model
from launch.cluster.thread import ClusterThread
from launch.model_names import find_model
from quire.gguf_file import is_model
from quire.sdk.progress import progress_bar


def run(
    input_file: Path,
    output_file: Path,
    model: str | None,
    options: Mapping[str, Any],
    *,
    url: str | None,
    api_key: str,
    num_at_once: int,
    seed: int,
    overwrite: bool = False,
) -> int:
    """Answer the requests of a file that have no answer yet.

    Args:
        input_file: of requests.
        output_file: of answers, which are appended.
        model: to start; None for the embedded one.
        options: of ClusterConfig.
        url: of a server that runs; None starts one.
        api_key: to call it with; "" for none.
        num_at_once: requests on their way.
        seed: of requests that bring none.
        overwrite: whether answers that are there go, once nothing stands in the way of new ones.

    Returns:
        How many requests were answered with an error, now and before.

    Raises:
        QuireError: a file cannot be read or written, the cluster cannot start, nobody listens at
            the URL, or the server is away for too long.
    """
    check_output(output_file, input_file)
    requests = read_requests(input_file, seed)
    found, end = ({}, 0) if overwrite else read_answered(output_file)
    there = [each for each in requests if each.custom_id in found]
    left = [each for each in requests if each.custom_id not in found]
    num_failed = sum(found[each.custom_id] for each in there)
    cluster = _Cluster(model, options) if left and url is None else None
    with ExitStack() as stack:
        answers = AnswerFile(output_file)
        stack.callback(answers.close)
        if left:
            base = stack.enter_context(cluster) if cluster is not None else url or ""
            client = HttpClient(base, api_key)
            asyncio.run(client.check())
        answers.cut(end)  # the rest is half of a line, or all with overwrite
        if not left:
            return num_failed
        advance = stack.enter_context(progress_bar(len(requests), True, "Answered requests"))
        for _ in there:
            advance(0)

        def answered(request: BatchRequest, answer: Answer) -> None:
            nonlocal num_failed
            status, request_id, body = answer
            answers.add(request, status, request_id, body)
            num_failed += status >= 400
            usage = body.get("usage") if isinstance(body, dict) else None
            advance((usage or {}).get("completion_tokens") or 0)

        calls = ((each, each.url, each.body, _request_id(each)) for each in left)
        asyncio.run(call_all(client, calls, num_at_once, answered))
    return num_failed


def _request_id(request: BatchRequest) -> str:
    """Return the id by which a server knows a request: its own, if that may be a header."""
    own = request.custom_id
    is_header = len(own) <= 128 and all("!" <= character <= "~" for character in own)
    return own if is_header else ""


class _Cluster(AbstractContextManager[str]):
    """A cluster whose HTTP APIs nobody else finds; entering it starts it and gives their place.

    Raises:
        ConfigError: it cannot be started.
    """

    def __init__(self, model: str | None, options: Mapping[str, Any]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="quire-batch-")
        name = {} if model is None or is_model(Path(model)) else {"served_model_name": model}
        self._config = ClusterConfig(
            model=embedded_model() if model is None else find_model(model).resolve(),
            port=None,
            grpc_port=0,
            uds=str(Path(self._directory.name) / "http"),
            **{**options, **{key: options.get(key) or value for key, value in name.items()}},
        )
        preflight.check(self._config)
        self._thread: ClusterThread | None = None

    def __enter__(self) -> str:
        self._thread = ClusterThread(self._config)
        return f"unix:{self._config.uds}"

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.stop()
        self._directory.cleanup()
