"""Answers of /v1/completions: parts of choices as events, or as one object."""

from collections.abc import Sequence
from typing import Any

from router.http.call import to_json
from router.http.completions.choices import Part, PromptChoices, stop_reason
from router.http.completions.request import CompletionRequest
from router.http.event_stream import DONE, EventStream

# More of them would make ids of events longer than the events.
MAX_CHOICES_WITH_IDS = 64


def fingerprint(prompts: Sequence[PromptChoices]) -> str | None:
    """Return OpenAI's `system_fingerprint`: with the same one, a seed gives the same tokens."""
    started = prompts[0].started
    if started is None or not started.numerics_id:
        return None
    return f"{started.numerics_id}.{started.text_id}"


def usage(prompts: Sequence[PromptChoices]) -> dict[str, int]:
    """Return the numbers of tokens so far."""
    num_prompt = sum(each.started.num_prompt_tokens for each in prompts if each.started)
    num_output = sum(each.num_tokens for each in prompts)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
    }


class StreamedAnswer:
    """Sends each part as an event of its own.

    The id of an event is how many events of each choice have been sent, joined by dots: a function
    of the tokens sent, with which a client can say what it has received.

    Args:
        own: id, created and model.
        request: to answer.
        prompts: whose parts come.
        stream: to send to.
    """

    def __init__(
        self,
        own: dict[str, Any],
        request: CompletionRequest,
        prompts: Sequence[PromptChoices],
        stream: EventStream,
    ) -> None:
        self._own = {**own, "object": "text_completion"}
        self._request = request
        self._prompts = prompts
        self._stream = stream
        num_choices = len(prompts) * request.n
        self._num_sent = [0] * num_choices
        self._has_ids = num_choices <= MAX_CHOICES_WITH_IDS
        self._last_tokens: dict[int, int] = {}

    async def take(self, choices: PromptChoices, parts: Sequence[Part]) -> None:
        """Send parts of a prompt's choices."""
        await self._stream.write(b"".join(self._event(choices, part) for part in parts))

    def _event(self, choices: PromptChoices, part: Part) -> bytes:
        request, end = self._request, part.end
        assert choices.started is not None, "the first event"
        choice: dict[str, Any] = {
            "index": part.index,
            "text": part.text,
            "logprobs": part.logprobs,
            "finish_reason": None if end is None else end.finish_reason.value,
            "stop_reason": None,
            "seed": choices.started.seed,
        }
        if request.return_token_ids:
            choice["token_ids"] = part.token_ids
        if part.prompt:
            choice |= part.prompt
        if part.token_ids:
            self._last_tokens[part.index] = part.token_ids[-1]
        if end is not None:
            stop_ids = request.inputs[0].sampling_params.stop_token_ids
            choice["stop_reason"] = stop_reason(end, self._last_tokens.get(part.index), stop_ids)
        content = {
            **self._own,
            "system_fingerprint": fingerprint(self._prompts),
            "choices": [choice],
        }
        if request.continuous_usage:
            content["usage"] = usage(self._prompts)
        elif request.include_usage:
            content["usage"] = None
        self._num_sent[part.index] += 1
        event_id = ""
        if self._has_ids:
            event_id = "id: " + ".".join(map(str, self._num_sent)) + "\n"
        return b"%bdata: %b\n\n" % (event_id.encode(), to_json(content))

    async def end(self) -> None:
        """Send what follows the last part."""
        last = DONE
        if self._request.include_usage:
            content = {**self._own, "choices": [], "usage": usage(self._prompts)}
            last = b"data: %b\n\n" % to_json(content) + DONE
        await self._stream.end(last)


class WholeAnswer:
    """Puts all parts together.

    Args:
        own: id, created and model.
        request: to answer.
        prompts: whose parts come.
    """

    def __init__(
        self, own: dict[str, Any], request: CompletionRequest, prompts: Sequence[PromptChoices]
    ) -> None:
        self._own = {**own, "object": "text_completion"}
        self._request = request
        self._prompts = prompts
        self._parts: dict[int, list[Part]] = {}

    async def take(self, choices: PromptChoices, parts: Sequence[Part]) -> None:
        """Keep parts of a prompt's choices."""
        for part in parts:
            self._parts.setdefault(part.index, []).append(part)

    def content(self) -> dict[str, Any]:
        """Return what the answer says."""
        return {
            **self._own,
            "system_fingerprint": fingerprint(self._prompts),
            "choices": [self._choice(index) for index in sorted(self._parts)],
            "usage": usage(self._prompts),
        }

    def _choice(self, index: int) -> dict[str, Any]:
        request, parts = self._request, self._parts[index]
        started = self._prompts[index // request.n].started
        end = parts[-1].end
        assert started is not None and end is not None, "its request has come to its end"
        token_ids = [token_id for part in parts for token_id in part.token_ids]
        stop_ids = request.inputs[0].sampling_params.stop_token_ids
        choice = {
            "index": index,
            "text": "".join(part.text for part in parts),
            "logprobs": _joined([part.logprobs for part in parts if part.logprobs]),
            "finish_reason": end.finish_reason.value,
            "stop_reason": stop_reason(end, token_ids[-1] if token_ids else None, stop_ids),
            "seed": started.seed,
        }
        if request.return_token_ids:
            choice |= {
                "token_ids": token_ids,
                "prompt_token_ids": list(started.prompt_token_ids),
            }
        for part in parts:
            choice |= part.prompt or {}
        return choice


def _joined(logprobs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if not logprobs:
        return None
    return {name: [item for each in logprobs for item in each[name]] for name in logprobs[0]}
