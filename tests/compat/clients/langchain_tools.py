"""`langchain-openai`, `bind_tools`."""

from harness import run
from langchain_openai import ChatOpenAI


def make(task):
    def answer(prompt, params):
        rest = dict(params)
        tools, choice = rest.pop("tools"), rest.pop("tool_choice")
        model = ChatOpenAI(
            base_url=f"{task['http']}/v1", api_key="none", model=task["model"], **rest
        )
        call = model.bind_tools(tools, tool_choice=choice).invoke(prompt).tool_calls[0]
        return [call["name"], call["args"]]

    return answer


run(make)
