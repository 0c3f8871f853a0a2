"""What the HTTP port says of itself: models, health, version."""

import time
from collections.abc import Callable

from quire.contract.errors import UnavailableError
from quire.version import __version__
from router.http.call import HttpCall
from router.http.endpoint import Handle
from router.requests.inference import Inference


def models(inference: Inference) -> Handle:
    """Return what lists the models that are served now."""
    created = int(time.time())

    async def handle(call: HttpCall) -> None:
        # Of cells with different arithmetic, a request may take any: one entry for a name.
        lengths: dict[str, int] = {}
        for model in inference.models():
            lengths[model.name] = max(model.max_model_len, lengths.get(model.name, 0))
        data = [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "quire",
                "root": name,
                "parent": None,
                "max_model_len": length,
            }
            for name, length in lengths.items()
        ]
        await call.answer({"object": "list", "data": data})

    return handle


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
