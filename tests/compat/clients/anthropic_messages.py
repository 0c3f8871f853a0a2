"""The stock `anthropic` client, the Messages API. Fields that it does not have go in the body."""

import anthropic
from harness import run


def make(task):
    client = anthropic.Anthropic(base_url=task["http"], api_key="none")

    def answer(prompt, params):
        others = {name: params[name] for name in params if name not in ("max_tokens", "stop")}
        done = client.messages.create(
            model=task["model"],
            messages=[{"role": "user", "content": prompt}],
            max_tokens=params["max_tokens"],
            stop_sequences=params.get("stop", []),
            extra_body=others,
        )
        return "".join(block.text for block in done.content)

    return answer


run(make)
