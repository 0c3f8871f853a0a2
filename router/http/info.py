"""What the HTTP port says of itself: models, health, version."""

import json
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quire.contract.errors import ModelNotFoundError, UnavailableError
from quire.version import __version__
from router.http.call import HttpCall, to_json
from router.http.endpoint import Handle
from router.requests.inference import Inference

# A header that clients of Anthropic's API send, and no others.
_ANTHROPIC = "anthropic-version"


class Models:
    """Answers which models are served now.

    Args:
        inference: knows them.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._created = int(time.time())

    async def list(self, call: HttpCall) -> None:
        """Answer with all of them, in the shape of the API whose client asks."""
        entries = list(self._entries().values())
        if _ANTHROPIC not in call.headers:
            await call.answer({"object": "list", "data": entries})
            return
        data = [self._anthropic(each) for each in entries]
        ids = [each["id"] for each in data]
        await call.answer(
            {
                "data": data,
                "has_more": False,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
            }
        )

    async def retrieve(self, call: HttpCall) -> None:
        """Answer with the one that the path names.

        Raises:
            ModelNotFoundError: it is not served here.
        """
        name, entries = call.path_params["model"], self._entries()
        if name not in entries:
            served = ", ".join(entries) or "none now"
            raise ModelNotFoundError(f"model: {name} is not served; served: {served}")
        entry = entries[name]
        await call.answer(self._anthropic(entry) if _ANTHROPIC in call.headers else entry)

    def _anthropic(self, entry: dict[str, Any]) -> dict[str, Any]:
        created = datetime.fromtimestamp(self._created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = entry["id"]
        return {"type": "model", "id": name, "display_name": name, "created_at": created}

    def _entries(self) -> dict[str, dict[str, Any]]:
        """Return what describes each model, by its name."""
        # Of cells with different arithmetic, a request may take any: one entry for a name.
        lengths: dict[str, int] = {}
        roots: dict[str, str] = {}
        for model in self._inference.models():
            for name in (model.name, *model.aliases):
                lengths[name] = max(model.max_model_len, lengths.get(name, 0))
                roots.setdefault(name, model.name)
        return {
            name: {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "quire",
                "root": roots[name],
                "parent": None,
                "max_model_len": length,
            }
            for name, length in lengths.items()
        }


def health(why_not_serving: Callable[[], str]) -> Handle:
    """Return what answers probes: 200 while requests can be computed, 503 with a reason if not."""

    async def handle(call: HttpCall) -> None:
        reason = why_not_serving()
        if reason:
            raise UnavailableError(f"not serving: {reason}")
        await call.answer({"status": "ok"})

    return handle


def load(inference: Inference) -> Handle:
    """Return what says how many requests there are."""

    async def handle(call: HttpCall) -> None:
        await call.answer({"server_load": inference.num_open})

    return handle


def metrics(exposition: Callable[[], bytes]) -> Handle:
    """Return what shows metrics to Prometheus."""

    async def handle(call: HttpCall) -> None:
        await call.answer_with(exposition(), "text/plain; version=0.0.4; charset=utf-8")

    return handle


def tokenizer_info(model: Path, chat_template: str | None) -> Handle:
    """Return what shows tokenizer_config.json, with the chat template in use.

    Args:
        model: whose tokenizer it is; a GGUF file has no such file.
        chat_template: None for none.
    """
    try:
        found = json.loads(
            (model / "tokenizer_config.json").read_text("utf-8-sig"),
            parse_constant=str,
            parse_float=_number,
        )
        to_json(found)  # a text may hold half of a surrogate pair
    except (OSError, ValueError, RecursionError):
        found = {}
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **(found if isinstance(found, dict) else {}),
        "chat_template": chat_template,
    }

    async def handle(call: HttpCall) -> None:
        await call.answer(content)

    return handle


def _number(text: str) -> float | str:
    """Return a number; one that overflows, which no JSON may hold, as its text."""
    value = float(text)
    return value if math.isfinite(value) else text


async def version(call: HttpCall) -> None:
    """Say which release this is."""
    await call.answer({"version": __version__})
