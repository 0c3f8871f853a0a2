"""The stock `openai` client, the Responses API. Fields that it does not have go in the body."""

import openai
from harness import run


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        own = {"temperature", "top_p"}
        rest = {name: value for name, value in params.items() if name not in {*own, "max_tokens"}}
        done = client.responses.create(
            model=task["model"],
            input=prompt,
            max_output_tokens=params["max_tokens"],
            extra_body=rest,
            **{name: value for name, value in params.items() if name in own},
        )
        return done.output_text

    return answer


run(make)
