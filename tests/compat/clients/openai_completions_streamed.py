"""The stock `openai` client, streamed, one event a token."""

import openai
from harness import run


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        chunks = client.completions.create(
            model=task["model"], prompt=prompt, stream=True, **params
        )
        return "".join(each.choices[0].text for each in chunks if each.choices)

    return answer


run(make)
