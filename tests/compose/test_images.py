"""The images themselves: what is in them, what is not, and that they run confined."""

import json
import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.cluster.supervisor import embedded_model
from quire.rpc.start import CONFIG_ERROR_STATUS
from tests.compose.stack import HANGS_AFTER_S, IMAGE_TAG, docker, inspect, why_not

SERVICES = ("router", "scheduler", "worker")
MAX_MEGABYTES = {"router": 250, "scheduler": 250, "worker": 1500}
# As deploy/compose.yaml and the pods of deploy/k8s run them.
CONFINED = (
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--user", "10001:10001"),
)
STOP_TIMEOUT_S = 20


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    if (reason := why_not(IMAGE_TAG)) is not None:
        pytest.skip(reason)


def image(service: str) -> str:
    return f"quire-{service}:{IMAGE_TAG}"


def inside(service: str, *command: str, user: str = "10001") -> str:
    """Return what a command prints in a container of its own, without a network."""
    entrypoint, *arguments = command
    options = ["--rm", "--network", "none", "--user", user, "--entrypoint", entrypoint]
    return docker("run", *options, image(service), *arguments)


def output_of(*command: str) -> str:
    """Return all that a command prints, whether it fails or not."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def cell() -> Iterator[dict[str, str]]:
    """Containers of one cell and its router, by service."""
    name = f"quire-images-{uuid.uuid4().hex[:8]}"
    common = ["--detach", "--network", name, "--env", "QUIRE_INSECURE=1", *CONFINED]
    options = {
        "worker": ["--num-threads", "1"],
        "scheduler": ["--worker", "worker:50053", "--kv-cache-gib", "0.03125"],
        "router": ["--scheduler", "scheduler:50052"],
    }
    containers: dict[str, str] = {}
    docker("network", "create", "--internal", name)
    try:
        for service, arguments in options.items():
            alias = ["--network-alias", service]
            containers[service] = docker("run", *common, *alias, image(service), *arguments)
        yield containers
    finally:
        for container in containers.values():
            docker("rm", "--force", container)
        docker("network", "rm", name)


def until_healthy(container: str) -> None:
    deadline = time.monotonic() + HANGS_AFTER_S
    while (state := inspect(container)["State"])["Health"]["Status"] != "healthy":
        assert state["Running"] and time.monotonic() < deadline, output_of(
            "docker", "logs", container
        )
        time.sleep(0.2)


# ---------------------------------------------------------------- what is in them


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_no_larger_than_it_must_be(service: str) -> None:
    assert inspect(image(service))["Size"] < MAX_MEGABYTES[service] * 1e6


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_declares_what_it_is_and_how_it_is_run(service: str) -> None:
    config = inspect(image(service))["Config"]
    labels = {name.rpartition(".")[2]: text for name, text in config["Labels"].items()}
    assert labels["title"] == f"quire-{service}"
    assert re.fullmatch(r"\d+\.\d+\.\d+", labels["version"])
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", labels["revision"])
    assert labels["description"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["quire", service]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"][:3] == ["CMD", "quire", "probe"]
    assert {"MALLOC_ARENA_MAX=2", "PYTHONUNBUFFERED=1", "HF_HUB_OFFLINE=1"} <= set(config["Env"])


@pytest.mark.parametrize("service", ["router", "scheduler"])
def test_what_computes_is_in_workers_only(service: str) -> None:
    program = "import importlib.util as u; print([u.find_spec(x) is None for x in {}])"
    absent = ("torch", "numpy", "transformers", "worker_svc._C")
    assert inside(service, "python", "-c", program.format(absent)) == str([True] * len(absent))
    assert inside("worker", "python", "-c", program.format(absent)) == str([False] * len(absent))


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_in_an_image_gives_privileges(service: str) -> None:
    find = ["find", "/", "-xdev", "-type", "f", "-perm", "/6000"]
    assert inside(service, *find, user="0") == ""
    writable = ["find", "/opt", "/usr", "/etc", "-xdev", "-perm", "/002", "!", "-type", "l"]
    assert inside(service, *writable, user="0") == ""
    assert inside(service, "find", "/opt", "-user", "10001", user="0") == ""


@pytest.mark.parametrize("service", SERVICES)
def test_what_built_an_image_is_not_in_it(service: str) -> None:
    names = ["-name", "pip", "-o", "-name", "*.whl", "-o", "-name", "gcc", "-o", "-name", "*.deb"]
    assert inside(service, "find", "/opt", "/usr/bin", "/var", "/root", *names, user="0") == ""


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_holds_no_secret(service: str) -> None:
    history = docker("history", "--no-trunc", "--format", "{{json .}}", image(service))
    steps = [json.loads(line)["CreatedBy"] for line in history.splitlines()]
    assert len(steps) > 5
    visible = "\n".join([*steps, *inspect(image(service))["Config"]["Env"]])
    assert not re.search(
        r"(password|secret|token|api_?key)\w*=|://[^/\s]+@", visible, re.IGNORECASE
    )
    keys = ["find", "/opt", "/etc", "/root", "/home", "/tmp", "(", "-name", "*.key"]
    keys += ["-o", "-name", "*.jsonl", "-o", "-name", "pip.conf", "-o", "-name", ".netrc", ")"]
    assert inside(service, *keys, user="0") == ""


# ---------------------------------------------------------------- that they run


def test_they_serve_confined_and_stop_on_request(cell: dict[str, str]) -> None:
    for container in cell.values():
        until_healthy(container)
    answer = docker("exec", cell["router"], "quire", "generate", "The list class")
    assert answer
    for service in ("router", "scheduler", "worker"):
        docker("stop", "--time", str(STOP_TIMEOUT_S), cell[service])
        state = inspect(cell[service])["State"]
        logs = output_of("docker", "logs", cell[service])
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), (service, logs)


def test_a_router_without_a_scheduler_lives_and_is_not_ready() -> None:
    container = docker(
        *("run", "--detach", "--network", "none", "--env", "QUIRE_INSECURE=1", *CONFINED),
        *(image("router"), "--scheduler", "127.0.0.1:9"),
    )
    try:
        deadline = time.monotonic() + HANGS_AFTER_S
        probe = ("docker", "exec", container, "quire", "probe")
        while "ok" not in output_of(*probe, "--path", "/livez"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert "503" in output_of(*probe)
    finally:
        docker("rm", "--force", container)


def test_a_router_reports_what_a_tokenizer_needs_that_it_lacks(tmp_path: Path) -> None:
    model = embedded_model()
    (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    config = {"tokenizer_class": "Qwen2Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tmp_path.chmod(0o755)
    container = docker(
        *("run", "--detach", "--network", "none", "--env", "QUIRE_INSECURE=1", *CONFINED),
        *("--volume", f"{tmp_path}:/model:ro", image("router"), "/model"),
    )
    try:
        assert docker("wait", container) == str(CONFIG_ERROR_STATUS)
        logs = output_of("docker", "logs", container)
        assert "needs transformers" in logs and "router-transformers" in logs, logs
        assert "Traceback" not in logs
    finally:
        docker("rm", "--force", container)
