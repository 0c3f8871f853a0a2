"""/tokenize and /detokenize, as vLLM has them."""

from collections.abc import Sequence

from quire.contract.inputs import DetokenizeInput, TokenizeInput
from router.http.call import HttpCall
from router.http.chat.request import read_request
from router.http.endpoint import Handle
from router.http.fields import Fields
from router.requests.inference import Inference


def tokenize(inference: Inference) -> Handle:
    """Return what turns `prompt`, or the prompt that `messages` are, into `tokens`."""

    async def handle(call: HttpCall) -> None:
        body = call.body
        model = body.text("model")
        token_ids = list(await _token_ids(inference, body, model))
        texts = None
        if body.boolean("return_token_strs"):
            texts = [inference.token_text(token_id) for token_id in token_ids]
        lengths = [each.max_model_len for each in inference.models() if each.has_name(model)]
        await call.answer(
            {
                "tokens": token_ids,
                "count": len(token_ids),
                "max_model_len": max(lengths, default=0),
                "token_strs": texts,
            }
        )

    return handle


async def _token_ids(inference: Inference, body: Fields, model: str) -> Sequence[int]:
    if "messages" in body:
        if "prompt" in body:
            raise body.refuse("prompt", "must be absent where messages are given")
        return await inference.prompt_ids(read_request(body).chat)
    if "prompt" not in body:
        raise body.refuse("prompt", "must be a string, got none")
    body.own_names["text"] = "prompt"
    add_special_tokens = body.boolean("add_special_tokens", True)
    return await inference.tokenize(TokenizeInput(body.text("prompt"), model, add_special_tokens))


def detokenize(inference: Inference) -> Handle:
    """Return what turns `tokens` into `prompt`."""

    async def handle(call: HttpCall) -> None:
        body = call.body
        # vLLM's leaves special tokens in.
        skip_special_tokens = body.boolean("skip_special_tokens", False)
        if "tokens" not in body:
            raise body.refuse("tokens", "must be an array of token ids, got none")
        token_ids = body.integers("tokens")
        body.own_names["token_ids"] = "tokens"
        request = DetokenizeInput(token_ids, body.text("model"), skip_special_tokens)
        await call.answer({"prompt": await inference.detokenize(request)})

    return handle
