"""The stock `openai` client, `parse` with a class of pydantic."""

import openai
from answer_model import Answer
from harness import run


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        done = client.chat.completions.parse(
            model=task["model"],
            messages=[{"role": "user", "content": prompt}],
            **{**params, "response_format": Answer},
        )
        return done.choices[0].message.parsed.model_dump()

    return answer


run(make)
