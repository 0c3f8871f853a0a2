"""`tritonclient[grpc]`, ModelStreamInfer: all requests in one stream."""

import json
import queue
import sys

import numpy as np
import tritonclient.grpc as triton


def tensor(name, value, datatype="BYTES"):
    array = np.array([value], dtype=object if datatype == "BYTES" else bool)
    each = triton.InferInput(name, [1], datatype)
    each.set_data_from_numpy(array)
    return each


task = json.load(sys.stdin)
client = triton.InferenceServerClient(task["grpc"])
received: queue.Queue = queue.Queue()
client.start_stream(lambda result, error: received.put((result, error)))
for i, case in enumerate(task["cases"]):
    inputs = [
        tensor("text_input", case["prompt"].encode()),
        tensor("sampling_parameters", json.dumps(case["params"]).encode()),
        tensor("stream", True, "BOOL"),
    ]
    client.async_stream_infer(task["model"], inputs, request_id=str(i))
texts: list[list[bytes]] = [[] for _ in task["cases"]]
left = len(texts)
while left:
    result, error = received.get()
    if error is not None:
        raise error
    response = result.get_response()
    texts[int(response.id)].append(result.as_numpy("text_output")[0])
    left -= response.parameters["triton_final_response"].bool_param
client.stop_stream()
json.dump([b"".join(each).decode() for each in texts], sys.stdout)
