"""curl, with a body of JSON."""

import json
import subprocess

from harness import run


def make(task):
    command = [
        *("curl", "-sS", "--fail-with-body", "-H", "content-type: application/json"),
        *("--data-binary", "@-", f"{task['http']}/v1/completions"),
    ]

    def answer(prompt, params):
        body = json.dumps({"model": task["model"], "prompt": prompt, **params})
        done = subprocess.run(command, input=body.encode(), capture_output=True, check=True)
        return json.loads(done.stdout)["choices"][0]["text"]

    return answer


run(make)
