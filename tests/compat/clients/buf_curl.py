"""`buf curl` over gRPC: messages in JSON, which it learns of from the router's reflection."""

import json
import subprocess

from harness import run


def documents(text):
    """Return the JSON values of a text that holds one after the other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def make(task):
    url = f"http://{task['grpc']}/quire.v1.InferenceService/Generate"
    command = [
        task["buf"],
        "curl",
        "--protocol",
        "grpc",
        "--http2-prior-knowledge",
        "-d",
        "@-",
        url,
    ]

    def answer(prompt, params):
        body = json.dumps({"text": prompt, "sampling_params": params})
        done = subprocess.run(command, input=body.encode(), capture_output=True, check=True)
        return "".join(
            each.get("delta", {}).get("text", "") for each in documents(done.stdout.decode())
        )

    return answer


run(make)
