"""The process that renders chat templates: `python -m router.chat.renderer`, in a sandbox.

What it runs is whatever a model's author and a client's messages make it do.
"""

from typing import Any

from router.chat.template_render import render
from router.sandbox.child import Answer, serve


def prepare(settings: Any) -> Answer:
    """Return what answers conversations with their prompts."""

    def answer(conversation: Any) -> dict[str, str]:
        source = settings["sources"][conversation["template"]]
        special_tokens, max_bytes = settings["special_tokens"], settings["max_bytes"]
        return {"text": render(source, special_tokens, conversation, max_bytes)}

    return answer


if __name__ == "__main__":
    serve(prepare)
