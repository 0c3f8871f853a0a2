"""The page at /: what is served here, and a line to try it with."""

import html
import json
from collections.abc import Sequence

from quire.contract.outputs import ModelInfo
from quire.version import __version__
from router.http.call import HttpCall
from router.http.endpoint import Handle
from router.requests.inference import Inference


def home(inference: Inference, paths: Sequence[str]) -> Handle:
    """Return what shows the page, as HTML to browsers and as text to others.

    Args:
        inference: knows the models.
        paths: that there are, each with its method.
    """

    async def handle(call: HttpCall) -> None:
        text = _text(inference.models(), paths, call.base_url)
        if "text/html" in call.headers.get("accept", ""):
            body = f"<!doctype html><title>Quire</title><pre>{html.escape(text)}</pre>"
            await call.answer_with(body.encode(), "text/html; charset=utf-8")
        else:
            await call.answer_with(text.encode(), "text/plain; charset=utf-8")

    return handle


def _text(models: Sequence[ModelInfo], paths: Sequence[str], base: str) -> str:
    names = [model.name for model in models]
    lines = [f"Quire {__version__}", ""]
    if models:
        lines += [f"  {each.name}: {each.max_model_len} tokens, {each.dtype}" for each in models]
    else:
        lines.append("  no model is served now; GET /health says why")
    message = {"role": "user", "content": "Say hello."}
    body = json.dumps({"model": names[0] if names else "", "messages": [message]})
    quoted = body.replace("'", "'\\''")
    lines += ["", *(f"  {each}" for each in paths), ""]
    lines += [f"curl {base}/v1/chat/completions \\", "  -H 'Content-Type: application/json' \\"]
    lines.append(f"  -d '{quoted}'")
    return "\n".join(lines) + "\n"
