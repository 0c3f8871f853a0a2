"""The stock `openai` client, conversations."""

import openai
from harness import run


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        done = client.chat.completions.create(
            model=task["model"], messages=[{"role": "user", "content": prompt}], **params
        )
        return done.choices[0].message.content

    return answer


run(make)
