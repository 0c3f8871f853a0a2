"""The stock `openai` client, `response_format` with a JSON schema."""

import json

import openai
from harness import run


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        done = client.chat.completions.create(
            model=task["model"], messages=[{"role": "user", "content": prompt}], **params
        )
        return json.loads(done.choices[0].message.content)

    return answer


run(make)
