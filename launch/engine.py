"""vLLM's engines by their names: requests that are added one by one, over a cluster."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar

from launch.cluster.thread import new_loop
from launch.engine_args import EngineArgs
from launch.engine_requests import OutputSoFar
from launch.llm import LLM
from launch.llm_requests import refuse
from quire.contract.errors import InvalidRequestError, OverloadedError, RequestExistsError
from quire.contract.request_outputs import RequestOutput
from quire.contract.sampling_params import SamplingParams
from quire.sdk.client import AsyncClient
from quire.sdk.prompts import Prompt, parse_prompts, with_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")


async def outputs_of(
    client: AsyncClient, request_id: str, prompt: Prompt, params: SamplingParams, priority: int
) -> AsyncGenerator[RequestOutput, None]:
    """Yield all there is of a request whenever there is more, with patience for full queues.

    Raises:
        QuireError: as `AsyncClient.stream`.
    """
    [parsed] = parse_prompts(prompt)
    text = parsed.content if isinstance(parsed.content, str) else parsed.shown
    while True:
        output = OutputSoFar(request_id, text, params)
        stream = client.stream(
            parsed.content,
            params,
            request_id=request_id,
            priority=priority,
            cache_salt=parsed.cache_salt,
            include_prompt_token_ids=True,
        )
        try:
            async with aclosing(stream):
                async for event in stream:
                    if output.add(event):
                        yield output.snapshot()
            return
        except OverloadedError as error:
            await asyncio.sleep(error.retry_after_ms / 1e3)


class AsyncLLMEngine:
    """An engine for asyncio. Use it in one event loop, and `shutdown` it."""

    def __init__(self, args: EngineArgs) -> None:
        self._llm = LLM(**args.given)
        self._client: AsyncClient | None = None

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Return an engine when its cluster takes requests; errors are those of `LLM`."""
        return cls(engine_args)

    def generate(
        self,
        prompt: Prompt | None,
        sampling_params: SamplingParams | None = None,
        request_id: str = "",
        prompt_token_ids: Sequence[int] | None = None,
        *,
        priority: int = 0,
        lora_request: None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield all there is of a request, whenever there is more.

        Parameters that are changed after the call do not change the request.

        Args:
            prompt: text, token ids, or a mapping of "prompt" or "prompt_token_ids".
            sampling_params: None for the defaults.
            request_id: unique among those that run; "" has one made.
            prompt_token_ids: of the prompt, whose text is then only shown.
            priority: smaller goes first, in [-100, 100].
            lora_request: None: adapters are not served.

        Raises:
            QuireError: as `AsyncClient.stream`.
        """
        refuse(lora_request=lora_request)
        prompt = with_ids(prompt, prompt_token_ids)
        params = self._llm.seeded(sampling_params or SamplingParams())
        return self._outputs(request_id, prompt, params, priority)

    async def _outputs(
        self, request_id: str, prompt: Prompt, params: SamplingParams, priority: int
    ) -> AsyncGenerator[RequestOutput, None]:
        if self._client is None:
            self._client = self._llm.async_client()
        outputs = outputs_of(self._client, request_id, prompt, params, priority)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their outputs finish with reason "abort"."""
        if self._client is not None:
            for each in [request_id] if isinstance(request_id, str) else request_id:
                await self._client.abort(each)

    async def aclose(self) -> None:
        """Disconnect, and stop the cluster."""
        if self._client is not None:
            await self._client.close()
        await asyncio.to_thread(self._llm.close)

    def shutdown(self) -> None:
        """Stop the cluster; requests that run fail."""
        self._llm.close()


class LLMEngine:
    """An engine for a loop of `step`: requests are added to it and outputs taken from it.

    The cluster works on its own; `step` waits for what it has brought.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._loop = new_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="quire-engine", daemon=True
        )
        self._thread.start()
        self._client: AsyncClient = self._call(self._open())
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news = threading.Condition()
        self._brought: dict[str, RequestOutput] = {}
        self._failed: list[tuple[str, BaseException]] = []
        self._unfinished: set[str] = set()
        llm.engines.add(self)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Return an engine when its cluster takes requests; errors are those of `LLM`."""
        return cls(LLM(**engine_args.given))

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """Return the tokenizer of the model; see `LLM.get_tokenizer`."""
        return self._llm.get_tokenizer()

    tokenizer = property(get_tokenizer)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt | None,
        params: SamplingParams | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        arrival_time: float | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        priority: int = 0,
        lora_request: None = None,
    ) -> None:
        """Begin a request; what the cluster refuses `step` raises.

        Args:
            request_id: unique among those that run.
            prompt: text, token ids, or a mapping of "prompt" or "prompt_token_ids"; None where
                prompt_token_ids are given.
            params: None for the defaults.
            prompt_token_ids: of the prompt, whose text is then only shown.
            arrival_time: passed over: requests are served in the order in which they come.
            sampling_params: another name for `params`.
            priority: smaller goes first, in [-100, 100].
            lora_request: None: adapters are not served.

        Raises:
            InvalidRequestError: no request_id, a prompt in none of the forms, or a lora_request.
            RequestExistsError: the request_id is in use.
        """
        refuse(lora_request=lora_request)
        if not request_id:
            raise InvalidRequestError("request_id", "must not be empty, got ''")
        if params is not None and sampling_params is not None:
            raise InvalidRequestError("sampling_params", "must be absent where params are given")
        prompt = with_ids(prompt, prompt_token_ids)
        if len(parse_prompts(prompt)) != 1:
            raise InvalidRequestError("prompt", "must be one prompt, got several or none")
        params = params or sampling_params or SamplingParams()
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError("params", f"must be SamplingParams, got {params!r}")
        with self._news:
            if request_id in self._unfinished:
                raise RequestExistsError(f"request {request_id} exists already")
            self._unfinished.add(request_id)
        run = self._run(request_id, prompt, self._llm.seeded(params), priority)
        self._call(self._start(request_id, run))

    def step(self) -> list[RequestOutput]:
        """Wait until a request has brought more, and return all there is of each that has.

        Returns:
            At once an empty list if no request is unfinished.

        Raises:
            QuireError: a request was refused or failed; it is over, the others go on.
        """
        with self._news:
            self._news.wait_for(lambda: self._brought or self._failed or not self._unfinished)
            if self._failed:
                request_id, error = self._failed.pop(0)
                self._unfinished.discard(request_id)
                raise error
            outputs, self._brought = list(self._brought.values()), {}
            self._unfinished -= {each.request_id for each in outputs if each.finished}
            return outputs

    def has_unfinished_requests(self) -> bool:
        """Return whether `step` has more to bring."""
        return self.get_num_unfinished_requests() > 0

    def get_num_unfinished_requests(self) -> int:
        """Return the number of requests whose end `step` has not brought yet."""
        with self._news:
            return len(self._unfinished)

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End requests and forget them: `step` brings no more of them."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        self._call(self._cancel(ids))
        with self._news:
            for each in ids:
                self._brought.pop(each, None)
            self._failed = [each for each in self._failed if each[0] not in ids]
            self._unfinished.difference_update(ids)
            self._news.notify_all()

    def shutdown(self) -> None:
        """End every request, and stop the cluster. May be called again."""
        self.end_requests()
        self._llm.close()

    def end_requests(self) -> None:
        """End every request, and disconnect. May be called again."""
        if not self._loop.is_closed():
            self.abort_request(list(self._unfinished))
            self._call(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _open(self) -> AsyncClient:
        return self._llm.async_client()

    async def _start(self, request_id: str, run: Coroutine[Any, Any, None]) -> None:
        self._tasks[request_id] = asyncio.ensure_future(run)

    async def _run(
        self, request_id: str, prompt: Prompt, params: SamplingParams, priority: int
    ) -> None:
        try:
            outputs = outputs_of(self._client, request_id, prompt, params, priority)
            async with aclosing(outputs):
                async for output in outputs:
                    with self._news:
                        self._brought[request_id] = output
                        self._news.notify_all()
        except Exception as error:  # it is the caller's, in its thread
            with self._news:
                self._brought.pop(request_id, None)
                self._failed.append((request_id, error))
                self._news.notify_all()
        finally:
            if self._tasks.get(request_id) is asyncio.current_task():
                del self._tasks[request_id]

    async def _cancel(self, request_ids: list[str]) -> None:
        tasks = [self._tasks[each] for each in request_ids if each in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
