"""The stock `openai` client, conversations, streamed."""

import openai
from harness import run


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        chunks = client.chat.completions.create(
            model=task["model"],
            messages=[{"role": "user", "content": prompt}],
            stream=True,
            **params,
        )
        return "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)

    return answer


run(make)
