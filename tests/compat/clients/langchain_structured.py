"""`langchain-openai`, `with_structured_output` with a class of pydantic."""

from answer_model import Answer
from harness import run
from langchain_openai import ChatOpenAI


def make(task):
    def answer(prompt, params):
        rest = {name: value for name, value in params.items() if name != "response_format"}
        model = ChatOpenAI(
            base_url=f"{task['http']}/v1", api_key="none", model=task["model"], **rest
        )
        return model.with_structured_output(Answer).invoke(prompt).model_dump()

    return answer


run(make)
