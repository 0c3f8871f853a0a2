"""What a server has: its model, and which extras it obeys. Found by asking, one at a time."""

from dataclasses import dataclass, replace
from typing import Any

from launch.torture.answers import Received
from launch.torture.errors import AskError, RefusedError
from launch.torture.questions import Question
from launch.torture.server import Api, Extras, Server, within
from launch.torture.transport import Transport
from quire.contract.errors import UnavailableError

_PROBE = Question("probe", "The list of the people who made the first number of", 8)
# So hot that tokens are nearly drawn at random.
_HOT = replace(_PROBE, temperature=1.5)
_DEFAULT_MAX_MODEL_LEN = 1024
_DEFAULT_TOKENS_PER_WORD = 2.5


@dataclass(frozen=True, slots=True)
class Found:
    """What was found.

    Attributes:
        server: with its extras.
        max_model_len: tokens of prompt and answer.
        tokens_per_word: of prompts.
        fingerprint: OpenAI's `system_fingerprint`; None where there is none.
    """

    server: Server
    max_model_len: int
    tokens_per_word: float
    fingerprint: str | None


async def probe(
    transport: Transport, api: Api, model: str, timeout_s: float, max_model_len: int
) -> Found:
    """Find out what a server has.

    Args:
        transport: to it.
        api: to ask.
        model: by name; "" for the first that it lists.
        timeout_s: longest that an answer may take.
        max_model_len: tokens of prompt and answer; 0 for what it lists.

    Raises:
        UnavailableError: it lists no model, or does not answer.
    """
    try:
        async with within(timeout_s):
            listed = await transport.get("models")
    except AskError as error:
        raise UnavailableError(f"/v1/models: must list models, got {error}") from None
    entry = _entry(listed, model)
    plain = Server(transport, api, str(entry["id"]), Extras(), timeout_s)
    received = Received()
    try:
        await _answer(plain, _PROBE, received)
    except AskError as error:
        raise UnavailableError(f"/v1/{api.path}: must answer, got {error}") from None
    extras = Extras(
        return_token_ids=await _has_ids(plain),
        logprobs=await _has_logprobs(plain),
        ignore_eos=await _ignores_eos(plain),
        seed=await _obeys_seed(plain),
        top_k=await _obeys_top_k(plain, received),
        event_ids=bool(received.event_id),
    )
    return Found(
        replace(plain, extras=extras),
        max_model_len or _length(entry),
        await _tokens_per_word(plain),
        received.fingerprint,
    )


def _entry(listed: Any, model: str) -> dict[str, Any]:
    """Return the model to ask, of those that are listed."""
    try:
        entries = [entry for entry in listed["data"] if isinstance(entry["id"], str)]
    except (TypeError, KeyError):
        entries = []
    if not entries and not model:
        raise UnavailableError(f"/v1/models: must list models, got {str(listed)[:80]}")
    for entry in entries:
        if model in ("", entry["id"]):
            found: dict[str, Any] = entry
            return found
    # Some servers load what they are asked for, and list what they have loaded.
    return {"id": model}


def _length(entry: dict[str, Any]) -> int:
    """Return how many tokens a model takes, as vLLM or llama.cpp list it."""
    meta = entry.get("meta")
    candidates = [entry.get("max_model_len")]
    if isinstance(meta, dict):
        candidates += [meta.get("n_ctx"), meta.get("n_ctx_train")]
    lengths = [each for each in candidates if isinstance(each, int) and each > 0]
    return lengths[0] if lengths else _DEFAULT_MAX_MODEL_LEN


async def _answer(server: Server, question: Question, received: Received) -> str:
    async with within(server.timeout_s):
        async for _ in server.receive(question, received):
            pass
    return received.answer().text


async def _text(server: Server, question: Question) -> str | None:
    """Return the answer's text; None where it is refused."""
    try:
        return await _answer(server, question, Received())
    except AskError:
        return None


async def _has_ids(plain: Server) -> bool:
    received = Received()
    try:
        await _answer(plain.with_extras(return_token_ids=True), _PROBE, received)
    except AskError:
        return False
    return received.has_ids and bool(received.answer().tokens)


async def _has_logprobs(plain: Server) -> bool:
    received = Received()
    try:
        await _answer(plain.with_extras(logprobs=True), _PROBE, received)
    except AskError:
        return False
    return bool(received.answer().logprobs)


async def _ignores_eos(plain: Server) -> bool:
    """Return whether it is taken, and no answer of the probes ended before its length."""
    received = Received()
    try:
        long = replace(_PROBE, max_tokens=64)
        await _answer(plain.with_extras(ignore_eos=True), long, received)
    except AskError:
        return False
    return received.answer().finish_reason == "length"


async def _obeys_seed(plain: Server) -> bool:
    long = replace(_HOT, max_tokens=24)
    texts = [await _text(plain, replace(long, seed=seed)) for seed in (1, 1, 2)]
    return None not in texts and texts[0] == texts[1] != texts[2]


async def _obeys_top_k(plain: Server, greedy: Received) -> bool:
    """Return whether the one likeliest token is drawn, however hot, where only that is kept."""
    only = await _text(plain, replace(_HOT, top_k=1))
    any_token = await _text(plain, _HOT)
    return only == greedy.answer().text != any_token


async def _tokens_per_word(plain: Server) -> float:
    """Return what a prompt of many words says; a guess where the server does not count."""
    question = replace(_PROBE, prompt=" ".join([_PROBE.prompt] * 8), max_tokens=1)
    received = Received()
    try:
        async with within(plain.timeout_s):
            counted = {"stream_options": {"include_usage": True}}
            async for _ in plain.receive(question, received, fields=counted):
                pass
    except RefusedError:
        return _DEFAULT_TOKENS_PER_WORD
    except AskError:
        pass
    if not received.num_prompt_tokens:
        return _DEFAULT_TOKENS_PER_WORD
    return received.num_prompt_tokens / len(question.prompt.split())
