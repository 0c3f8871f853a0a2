"""The offline API: a list of prompts in, a list of outputs out. Names and shapes are vLLM's."""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from launch.cluster.config import ClusterConfig, embedded_model
from launch.extras import require
from launch.keywords import documents_keywords
from quire.contract.engine_options import EngineKeywords
from quire.contract.errors import ConfigError, InvalidRequestError, OverloadedError
from quire.contract.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    Completion,
    CompletionOutput,
    FinishReason,
    Logprob,
    RequestOutput,
    TokenLogprobs,
)
from quire.contract.sampling_params import BeamSearchParams, SamplingParams
from quire.gguf_file import find_gguf
from quire.sdk.client import Client
from quire.sdk.progress import progress_bar
from quire.sdk.prompts import ParsedPrompt, Prompt, parse_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from launch.cluster.thread import ClusterThread

# As many threads wait for answers; more prompts than this wait here rather than in the cluster.
MAX_CONCURRENT_REQUESTS = 256

Message = Mapping[str, Any]


def _start_cluster(config: ClusterConfig) -> "ClusterThread":
    from launch.cluster.thread import ClusterThread

    return ClusterThread(config)


@documents_keywords(ClusterConfig, EngineKeywords)
class LLM:
    """A model to give prompts to: a cluster of its own, or one that runs already.

        with LLM("path/to/model") as llm:
            for output in llm.generate(["Once upon", "In the end"], SamplingParams(max_tokens=32)):
                print(output.prompt, output.outputs[0].text)

    The cluster's processes end with `close`, with the `with` block, or with this process.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        target: str | Sequence[str] | None = None,
        api_key: str | None = None,
        tls_dir: str | Path | None = None,
        **options: Unpack[EngineKeywords],
    ) -> None:
        """Start a cluster and return when it takes requests, or connect to one.

        Args:
            model: Hugging Face model directory, or a GGUF file; None takes the embedded demo model.
                With a target, only `chat` reads it, for its template.
            target: router of a running cluster, "host:port", or several, as for `Client`; the
                options below are then its own.
            api_key: for the target; None takes QUIRE_API_KEY from the environment, if set.
            tls_dir: certificates, as for `Client`; a cluster of its own takes those of all roles
                from there.
            **options: of the engine, as of `quire serve`: see EngineKeywords.

        Raises:
            TypeError: a keyword is no option.
            ConfigError: the cluster cannot start, or what it needs is not installed; one line that
                says why.
            UnavailableError: a service died without a word.
        """
        if unknown := options.keys() - EngineKeywords.__annotations__.keys():
            raise TypeError(f"LLM: {min(unknown)} is no keyword")
        self._model = Path(model) if model is not None else None
        tls_dir = tls_dir or os.environ.get("QUIRE_TLS_DIR") or None
        self._cluster: ClusterThread | None = None
        if target is None:
            require("LLM", "router", "worker", bring="all")
            self._model = self._model or embedded_model()
            self._cluster = _start_cluster(
                ClusterConfig(
                    model=self._model,
                    port=0,
                    tls_dir=None if tls_dir is None else str(tls_dir),
                    **options,
                )
            )
            target = self._cluster.address
        self._target = target
        self._tls_dir, self._api_key = tls_dir, api_key
        self._client = self._connect()

    def _connect(self) -> Client:
        return Client(self._target, tls_dir=self._tls_dir, api_key=self._api_key)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        include_time_breakdown: bool = False,
    ) -> list[RequestOutput]:
        """Continue prompts, all at once; the cluster batches them.

        Args:
            prompts: one or many; each a text, token ids, or a mapping that has "prompt" or
                "prompt_token_ids" and may have "cache_salt".
            sampling_params: for all, or one for each prompt; None for the defaults.
            use_tqdm: show a progress bar on the terminal.
            priority: of each prompt, in [-100, 100]; smaller goes first.
            include_time_breakdown: have each output say where its time went.

        Returns:
            One output for each prompt, in their order.

        Raises:
            InvalidRequestError: a prompt or parameter is out of bounds; the others are given up.
            UnavailableError: the cluster cannot be reached.
        """
        wanted = parse_prompts(prompts)
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [sampling_params or SamplingParams()] * len(wanted)
        else:
            params = list(sampling_params)
        priorities = [0] * len(wanted) if priority is None else list(priority)
        for field, values in (("sampling_params", params), ("priority", priorities)):
            if len(values) != len(wanted):
                raise InvalidRequestError(
                    field, f"needs one for each of {len(wanted)} prompts, got {len(values)}"
                )
        if not wanted:
            return []
        given_up = threading.Event()
        with (
            # Of its own: closing it ends every request that still runs, whatever it waits for.
            self._connect() as client,
            ThreadPoolExecutor(min(len(wanted), MAX_CONCURRENT_REQUESTS)) as pool,
            progress_bar(len(wanted), use_tqdm) as advance,
        ):
            futures: list[Future[RequestOutput]] = [
                pool.submit(_run, client, *each, include_time_breakdown, given_up)
                for each in zip(wanted, params, priorities, strict=True)
            ]
            try:
                for future in as_completed(futures):
                    advance(sum(len(each.token_ids) for each in future.result().outputs))
            except BaseException:
                given_up.set()
                pool.shutdown(wait=False, cancel_futures=True)
                client.close()
                raise
        return [future.result() for future in futures]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Continue conversations, as `generate` does prompts.

        Args:
            messages: one conversation or many; each message has "role" and "content".
            sampling_params: as for `generate`.
            use_tqdm: show a progress bar on the terminal.
            chat_template: Jinja template; None takes the model's.
            add_generation_prompt: end each conversation where the assistant begins to speak.

        Raises:
            ConfigError: the model's path is not known here, or has no chat template.
            InvalidRequestError: as for `generate`.
        """
        if self._model is None:
            raise ConfigError("chat: needs the model's path: LLM(model=..., target=...)")
        tokenizer: PreTrainedTokenizerBase
        if (gguf := find_gguf(self._model)) is not None:
            from router.text.gguf_tokenizer import load_gguf_tokenizer

            tokenizer = load_gguf_tokenizer(gguf)
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self._model, trust_remote_code=False)
        if chat_template is None and tokenizer.chat_template is None:
            raise ConfigError(f"chat: {self._model} has no chat template; pass chat_template")
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if one else messages
        texts = [
            tokenizer.apply_chat_template(
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
            for conversation in conversations
        ]
        # The template has put the special tokens in.
        prompts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = True,
    ) -> list[BeamSearchOutput]:
        """Search for the most probable continuations of prompts.

        Args:
            prompts: as for `generate`.
            params: for all of them.
            use_tqdm: show a progress bar on the terminal.

        Returns:
            One output for each prompt, in their order.

        Raises:
            InvalidRequestError: as for `generate`.
            UnavailableError: as for `generate`.
        """
        found = self.generate(prompts, params.sampling_params(), use_tqdm=use_tqdm)
        return [
            BeamSearchOutput(tuple(self._beam(request, each) for each in request.outputs))
            for request in found
        ]

    def _beam(self, request: RequestOutput, output: CompletionOutput) -> BeamSearchSequence:
        tokens = request.prompt_token_ids + output.token_ids
        return BeamSearchSequence(
            tokens=tokens,
            text=self._client.detokenize(tokens),
            cum_logprob=output.cumulative_logprob or 0.0,
            finish_reason=output.finish_reason,
        )

    def close(self) -> None:
        """Disconnect, and stop the cluster if it is this object's own. May be called again."""
        self._client.close()
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _run(
    client: Client,
    prompt: ParsedPrompt,
    params: SamplingParams,
    priority: int,
    include_time_breakdown: bool,
    given_up: threading.Event,
) -> RequestOutput:
    """Run one prompt to its end, with patience for a cluster that is full."""
    while True:
        try:
            return _generate(client, prompt, params, priority, include_time_breakdown)
        except OverloadedError as error:
            if given_up.wait(error.retry_after_ms / 1e3):
                raise


def _generate(
    client: Client,
    prompt: ParsedPrompt,
    params: SamplingParams,
    priority: int,
    include_time_breakdown: bool,
) -> RequestOutput:
    if isinstance(prompt.content, str):
        text, ids = prompt.content, client.tokenize(prompt.content)
    else:
        text, ids = None, list(prompt.content)
    if params.truncate_prompt_tokens is not None:
        ids = ids[-params.truncate_prompt_tokens :]
    completions = client.generate_all(
        ids,
        params,
        priority=priority,
        cache_salt=prompt.cache_salt,
        include_time_breakdown=include_time_breakdown,
    )
    prompt_logprobs = None
    if params.prompt_logprobs is not None:
        prompt_logprobs = (None, *map(_by_token, completions[0].prompt_logprobs))
    return RequestOutput(
        request_id=completions[0].request_id,
        prompt=text,
        prompt_token_ids=tuple(ids),
        outputs=tuple(_completion_output(each, params) for each in completions),
        finished=all(each.finish_reason != FinishReason.ABORT for each in completions),
        prompt_logprobs=prompt_logprobs,
        time_breakdown=completions[0].time_breakdown,
    )


def _by_token(position: TokenLogprobs) -> dict[int, Logprob]:
    """Return the most probable tokens of a position, best first, and the sampled one."""
    sampled, *top = zip(position.token_ids, position.logprobs, position.texts, strict=True)
    found = {
        token: Logprob(logprob, rank, text) for rank, (token, logprob, text) in enumerate(top, 1)
    }
    found[sampled[0]] = Logprob(sampled[1], position.sampled_rank, sampled[2])
    return found


def _completion_output(completion: Completion, params: SamplingParams) -> CompletionOutput:
    """Return an output under the offline API's names."""
    stop_reason: int | str | None = completion.stop_str
    last = completion.token_ids[-1:]
    if stop_reason is None and completion.finish_reason is FinishReason.STOP:
        # None for the model's own end of text.
        stop_reason = last[0] if last and last[0] in params.stop_token_ids else None
    asked = params.logprobs is not None
    return CompletionOutput(
        index=completion.index,
        text=completion.text,
        token_ids=completion.token_ids,
        cumulative_logprob=completion.cumulative_logprob,
        logprobs=tuple(map(_by_token, completion.logprobs)) if asked else None,
        finish_reason=completion.finish_reason.value,
        stop_reason=stop_reason,
    )
