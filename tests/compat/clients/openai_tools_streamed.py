"""The stock `openai` client, calls of tools, put together by itself from a stream."""

import json

import openai
from harness import run


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        with client.chat.completions.stream(
            model=task["model"], messages=[{"role": "user", "content": prompt}], **params
        ) as stream:
            for _ in stream:
                pass
            function = stream.current_completion_snapshot.choices[0].message.tool_calls[0].function
        return [function.name, json.loads(function.arguments)]

    return answer


run(make)
