"""`tritonclient[grpc]`, ModelInfer."""

import json

import numpy as np
import tritonclient.grpc as triton
from harness import run


def tensor(name, value, datatype="BYTES"):
    array = np.array([value], dtype=object if datatype == "BYTES" else bool)
    each = triton.InferInput(name, [1], datatype)
    each.set_data_from_numpy(array)
    return each


def make(task):
    client = triton.InferenceServerClient(task["grpc"])
    assert client.is_server_ready()
    assert client.is_model_ready(task["model"])

    def answer(prompt, params):
        inputs = [
            tensor("text_input", prompt.encode()),
            tensor("sampling_parameters", json.dumps(params).encode()),
            tensor("exclude_input_in_output", True, "BOOL"),
        ]
        return client.infer(task["model"], inputs).as_numpy("text_output")[0].decode()

    return answer


run(make)
