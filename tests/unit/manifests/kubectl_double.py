#!/usr/bin/env python3
"""A kubectl that keeps a cluster in a file, and a record of how it was called.

Directory QUIRE_TEST_CLUSTER holds `cluster.json`, the state, and `calls.jsonl`. StatefulSets make
pods at once, and again when those are deleted; pods are ready unless listed as `unready`. Jobs
cannot be changed, and end as `job_ends` says.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

DIRECTORY = Path(os.environ["QUIRE_TEST_CLUSTER"])
STATE = DIRECTORY / "cluster.json"


def fail(message: str) -> None:
    print(message, file=sys.stderr)
    sys.exit(1)


def revision(each: dict[str, Any]) -> str:
    content = json.dumps(each["spec"]["template"], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def pod(owner: dict[str, Any], name: str, ready: bool) -> dict[str, Any]:
    template = owner["spec"]["template"]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                **template["metadata"]["labels"],
                "controller-revision-hash": revision(owner),
            },
            "ownerReferences": [{"name": owner["metadata"]["name"]}],
        },
        "spec": template["spec"],
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def apply(state: dict[str, Any], args: list[str]) -> None:
    file = args[args.index("--filename") + 1]
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    for each in yaml.safe_load_all(text):
        name = each["metadata"]["name"]
        if each["kind"] == "Namespace":
            state["namespaces"].append(name)
        if each["kind"] == "Job" and state["jobs"].setdefault(name, each) != each:
            fail(f'The Job "{name}" is invalid: spec.template: field is immutable')
        if each["kind"] != "StatefulSet":
            continue
        each["metadata"]["generation"] = 1
        each["status"] = {"observedGeneration": 1, "updateRevision": revision(each)}
        state["sets"][name] = each
        for ordinal in range(each["spec"]["replicas"]):
            pod_name = f"{name}-{ordinal}"
            if pod_name not in state["pods"]:
                state["pods"][pod_name] = pod(each, pod_name, pod_name not in state["unready"])


def get(state: dict[str, Any], args: list[str]) -> None:
    kind = args[1]
    if kind == "statefulset,pod":
        cell = args[args.index("--selector") + 1].removeprefix("quire-cell=")
        items = [*state["sets"].values(), *state["pods"].values()]
        chosen = [each for each in items if each["metadata"]["labels"].get("quire-cell") == cell]
        print(json.dumps({"items": chosen}))
    elif kind == "job":
        # Of two questions, the second finds it ended.
        asked = state["asked"] = state["asked"] + 1
        end = {"type": state["job_ends"], "status": "True", "message": "no room"}
        print(json.dumps({"status": {"conditions": [end] if asked % 2 == 0 else []}}))
    elif f"{kind}/{args[2]}" not in state["present"]:
        fail(f'Error from server (NotFound): "{args[2]}" not found')


def delete(state: dict[str, Any], name: str) -> None:
    owner = state["sets"][state["pods"][name]["metadata"]["ownerReferences"][0]["name"]]
    state["pods"][name] = pod(owner, name, name not in state["unready"])


def main() -> None:
    args = sys.argv[1:]
    state = json.loads(STATE.read_text())
    with (DIRECTORY / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(args) + "\n")
    if args[0] == state["refuse"]:
        fail(f"error: cannot {args[0]}")
    match args[0]:
        case "version":
            if state["server"] is None:
                fail("The connection to the server localhost:8080 was refused")
            print(json.dumps({"serverVersion": {"major": "1", "minor": state["server"]}}))
        case "apply":
            apply(state, args)
        case "get":
            get(state, args)
        case "delete" if args[1] == "job":
            state["jobs"].pop(args[2], None)
        case "delete":
            delete(state, args[2])
        case "rollout" | "wait":
            pass
        case _:
            fail(f"unknown command {args[0]}")
    STATE.write_text(json.dumps(state))


if __name__ == "__main__":
    main()
