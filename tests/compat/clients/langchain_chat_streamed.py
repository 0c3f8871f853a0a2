"""`langchain-openai`, conversations, streamed."""

from harness import run
from langchain_openai import ChatOpenAI


def make(task):
    def answer(prompt, params):
        model = ChatOpenAI(
            base_url=f"{task['http']}/v1", api_key="none", model=task["model"], **params
        )
        return "".join(chunk.content for chunk in model.stream(prompt))

    return answer


run(make)
