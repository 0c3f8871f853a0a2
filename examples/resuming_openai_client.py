"""OpenAI's stock client, with a few lines around it that go on where a stream broke.

A router that is killed, replaced or cut off costs time: nothing comes twice, nothing is lost.

    pip install openai
    python examples/resuming_openai_client.py --base-url http://127.0.0.1:8000/v1 "The list class"
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import openai


def resuming(create: Callable[..., Iterable[Any]], **request: Any) -> Iterator[Any]:
    """Yield the chunks of a stream, each once, however often it breaks.

    Args:
        create: of `client.completions`, for one prompt, or of `client.chat.completions`.
        request: its arguments, without `stream`.

    Raises:
        openai.APIStatusError: the server refuses the request.
    """
    body, sent, n = dict(request.pop("extra_body", {})), Counter[int](), request.get("n") or 1
    has_usage = False
    while True:
        try:
            for chunk in create(**request, stream=True, extra_body=body):
                for choice in chunk.choices:
                    sent[choice.index] += 1
                    body["resume"] = {
                        "id": chunk.id,
                        "seed": choice.seed,
                        "created": chunk.created,
                        "system_fingerprint": chunk.system_fingerprint,
                        "starting_after": ".".join(str(sent[index]) for index in range(n)),
                    }
                has_usage = not chunk.choices  # which comes last
                yield chunk
            return
        except (openai.APIConnectionError, httpx.TransportError):
            if has_usage:
                return
            time.sleep(0.2)


def main() -> None:
    """Stream a completion to the terminal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt", nargs="?", default="The list class")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    api_key = os.environ.get("QUIRE_API_KEY", "none")
    request = {"model": "", "prompt": arguments.prompt, "max_tokens": arguments.max_tokens}
    if arguments.seed is not None:
        request["seed"] = arguments.seed
    with openai.OpenAI(base_url=arguments.base_url, api_key=api_key) as client:
        for chunk in resuming(client.completions.create, **request):
            for choice in chunk.choices:
                print(choice.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
