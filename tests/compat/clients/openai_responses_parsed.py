"""The stock `openai` client, `parse` of the Responses API. Fields that it lacks go in the body."""

import openai
from answer_model import Answer
from harness import run

OWN = ("temperature", "top_p")
RENAMED = ("max_tokens", "response_format")


def make(task):
    client = openai.OpenAI(base_url=f"{task['http']}/v1", api_key="none")

    def answer(prompt, params):
        done = client.responses.parse(
            model=task["model"],
            input=prompt,
            max_output_tokens=params["max_tokens"],
            text_format=Answer,
            extra_body={k: v for k, v in params.items() if k not in (*OWN, *RENAMED)},
            **{k: v for k, v in params.items() if k in OWN},
        )
        return done.output_parsed.model_dump()

    return answer


run(make)
