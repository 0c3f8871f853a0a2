"""What the HTTP port says of itself: models, health, version."""

import time
from collections.abc import Callable
from typing import Any

from quire.contract.errors import ModelNotFoundError, UnavailableError
from quire.version import __version__
from router.http.call import HttpCall
from router.http.endpoint import Handle
from router.requests.inference import Inference


class Models:
    """Answers which models are served now.

    Args:
        inference: knows them.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._created = int(time.time())

    async def list(self, call: HttpCall) -> None:
        """Answer with all of them."""
        await call.answer({"object": "list", "data": list(self._entries().values())})

    async def retrieve(self, call: HttpCall) -> None:
        """Answer with the one that the path names.

        Raises:
            ModelNotFoundError: it is not served here.
        """
        name, entries = call.path_params["model"], self._entries()
        if name not in entries:
            served = ", ".join(entries) or "none now"
            raise ModelNotFoundError(f"model: {name} is not served; served: {served}")
        await call.answer(entries[name])

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


async def version(call: HttpCall) -> None:
    """Say which release this is."""
    await call.answer({"version": __version__})
