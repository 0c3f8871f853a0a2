"""The stock `openai` client, whole texts."""

import openai
from harness import run


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        done = client.completions.create(model=task["model"], prompt=prompt, **params)
        return done.choices[0].text

    return answer


run(make)
