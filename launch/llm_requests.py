"""Requests of the offline API, from their prompts to their outputs."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from launch.extras import require
from quire.contract.errors import (
    ConfigError,
    InvalidRequestError,
    OverloadedError,
    QuireError,
)
from quire.contract.outputs import Completion, FinishReason, TokenLogprobs
from quire.contract.request_outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    Logprob,
    RequestOutput,
)
from quire.contract.sampling_params import SamplingParams
from quire.sdk.calls import ChatOptions, Messages, TemplateOptions, chat_input
from quire.sdk.client import Client
from quire.sdk.progress import progress_bar
from quire.sdk.prompts import ParsedPrompt

# As many threads wait for answers; more prompts than this wait here rather than in the cluster.
MAX_CONCURRENT_REQUESTS = 256


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages of which the cluster makes a prompt.

    Attributes:
        messages: in their order.
        options: for the template.
    """

    messages: Messages
    options: TemplateOptions


def rendered(
    client: Client, model: Path | None, conversations: Sequence[Conversation], source: str
) -> list[ParsedPrompt]:
    """Make prompts of conversations here, with a template of this process's own.

    Args:
        client: of the cluster.
        model: path of the model, whose special tokens the template may name.
        conversations: to be continued.
        source: the template.

    Raises:
        ConfigError: the model's path is not known.
        InvalidRequestError: the template refuses a conversation.
    """
    if model is None:
        raise ConfigError(
            "chat_template: needs the model's path: LLM(model=..., target=...), got none"
        )
    require("chat_template", "router")
    from router.chat.template_files import load_chat_templates
    from router.chat.template_render import render_chat

    special_tokens = load_chat_templates(model).special_tokens
    texts = [
        render_chat(
            source,
            special_tokens,
            chat_input(each.messages, None, cast("ChatOptions", each.options)),
        )
        for each in conversations
    ]
    return [ParsedPrompt(client.tokenize(text, add_special_tokens=False)) for text in texts]


def refuse(**given: object) -> None:
    """Check that what vLLM's methods take, and these do not, asks for nothing.

    Args:
        given: arguments by name.

    Raises:
        InvalidRequestError: one asks for something.
    """
    for name, value in given.items():
        if value not in (None, [], {}):
            raise InvalidRequestError(name, f"must be None, got {value!r}")


exiting = threading.Event()
"""Set when this process ends while a cluster of its own is up."""


def run(
    client: Client,
    prompt: ParsedPrompt | Conversation,
    params: SamplingParams,
    priority: int,
    include_time_breakdown: bool,
    given_up: threading.Event,
) -> RequestOutput:
    """Run one prompt to its end, with patience for a cluster that is full.

    Args:
        client: of the cluster.
        prompt: to continue.
        params: for it.
        priority: smaller goes first.
        include_time_breakdown: have the output say where its time went.
        given_up: set when nobody waits any more.

    Raises:
        QuireError: the request is refused, or failed.
    """
    while True:
        try:
            return _generate(client, prompt, params, priority, include_time_breakdown)
        except OverloadedError as error:
            if given_up.wait(error.retry_after_ms / 1e3):
                raise
        except QuireError:
            if exiting.is_set() and threading.current_thread() is not threading.main_thread():
                _wait_for_the_end()
            raise


def run_all(
    connect: Callable[[], Client],
    wanted: Sequence[tuple[ParsedPrompt | Conversation, SamplingParams, int]],
    *,
    include_time_breakdown: bool,
    use_tqdm: bool,
) -> list[RequestOutput]:
    """Return an output for each request, in their order.

    Args:
        connect: returns a client, which is closed.
        wanted: prompt or conversation, parameters and priority of each.
        include_time_breakdown: have each output say where its time went.
        use_tqdm: show a progress bar on the terminal.

    Raises:
        QuireError: of the first that fails; the others are given up.
    """
    if not wanted:
        return []
    given_up = threading.Event()
    with (
        connect() as client,
        ThreadPoolExecutor(min(len(wanted), MAX_CONCURRENT_REQUESTS)) as pool,
        progress_bar(len(wanted), use_tqdm) as advance,
    ):
        futures: list[Future[RequestOutput]] = []
        try:
            for each in wanted:
                futures.append(pool.submit(run, client, *each, include_time_breakdown, given_up))
            for future in as_completed(futures):
                advance(sum(len(each.token_ids) for each in future.result().outputs))
        except BaseException as error:
            if _is_of_exit(error) and threading.current_thread().daemon:
                _wait_for_the_end()
            given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            client.close()
            raise
    return [future.result() for future in futures]


def _is_of_exit(error: BaseException) -> bool:
    """Return whether an error says that no pool takes work any more, since the interpreter ends.

    Pools refuse it before their threads are joined, and the main thread is alive until they are.
    """
    return isinstance(error, RuntimeError) and "interpreter shutdown" in str(error)


def _wait_for_the_end() -> None:
    """Wait until the process ends, in a thread that has nobody left to tell of an error."""
    threading.Event().wait()


def _generate(
    client: Client,
    prompt: ParsedPrompt | Conversation,
    params: SamplingParams,
    priority: int,
    include_time_breakdown: bool,
) -> RequestOutput:
    text = None
    if isinstance(prompt, Conversation):
        completions = client.chat_all(
            prompt.messages,
            params,
            priority=priority,
            include_time_breakdown=include_time_breakdown,
            **prompt.options,
        )
    else:
        content = prompt.content
        text = content if isinstance(content, str) else prompt.shown
        completions = client.generate_all(
            content,
            params,
            priority=priority,
            cache_salt=prompt.cache_salt,
            include_time_breakdown=include_time_breakdown,
            include_prompt_token_ids=True,
        )
    prompt_logprobs = None
    if params.prompt_logprobs is not None:
        prompt_logprobs = (None, *map(logprobs_by_token, completions[0].prompt_logprobs))
    return RequestOutput(
        request_id=completions[0].request_id,
        prompt=text,
        prompt_token_ids=completions[0].prompt_token_ids,
        outputs=tuple(_completion_output(each, params) for each in completions),
        finished=all(each.finish_reason != FinishReason.ABORT for each in completions),
        prompt_logprobs=prompt_logprobs,
        time_breakdown=completions[0].time_breakdown,
        num_cached_tokens=max(each.num_cached_tokens for each in completions),
    )


def logprobs_by_token(position: TokenLogprobs) -> dict[int, Logprob]:
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
        logprobs=tuple(map(logprobs_by_token, completion.logprobs)) if asked else None,
        finish_reason=completion.finish_reason.shown,
        stop_reason=stop_reason,
        content=completion.content,
        reasoning=completion.reasoning,
        tool_calls=completion.tool_calls,
    )


def beams_of(client: Client, request: RequestOutput) -> BeamSearchOutput:
    """Return the beams that a request ended with, each with its prompt, as vLLM shows them."""

    def beam(output: CompletionOutput) -> BeamSearchSequence:
        tokens = request.prompt_token_ids + output.token_ids
        return BeamSearchSequence(
            tokens=tokens,
            text=client.detokenize(tokens),
            cum_logprob=output.cumulative_logprob or 0.0,
            finish_reason=output.finish_reason or "",
        )

    return BeamSearchOutput(tuple(beam(each) for each in request.outputs))
