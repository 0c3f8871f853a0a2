"""The stock `openai` client, calls of tools."""

import json

import openai
from harness import run


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        done = client.chat.completions.create(
            model=task["model"], messages=[{"role": "user", "content": prompt}], **params
        )
        function = done.choices[0].message.tool_calls[0].function
        return [function.name, json.loads(function.arguments)]

    return answer


run(make)
