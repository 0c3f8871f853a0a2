"""`litellm`, conversations through its generic OpenAI provider."""

from harness import run  # first: it keeps litellm from the network


def make(task):
    import litellm

    def answer(prompt, params):
        done = litellm.completion(
            model=f"openai/{task['model']}",
            api_base=f"{task['http']}/v1",
            api_key="none",
            messages=[{"role": "user", "content": prompt}],
            **params,
        )
        return done.choices[0].message.content

    return answer


run(make)
