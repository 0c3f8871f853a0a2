"""`llama-index-llms-openai-like`, texts."""

from harness import run
from llama_index.llms.openai_like import OpenAILike


def make(task):
    def answer(prompt, params):
        rest = {name: value for name, value in params.items() if name != "max_tokens"}
        model = OpenAILike(
            model=task["model"],
            api_base=f"{task['http']}/v1",
            api_key="none",
            is_chat_model=False,
            temperature=rest.pop("temperature"),
            max_tokens=params["max_tokens"],
            additional_kwargs=rest,
        )
        return model.complete(prompt).text

    return answer


run(make)
