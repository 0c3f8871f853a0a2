"""The compose files, as far as they can be checked without an engine; tests/compose runs them."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from launch.cli.main import app

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
FILES = (
    *("compose.yaml", "compose.join.yaml", "compose.gpu.yaml", "compose.monitoring.yaml"),
    "compose.pull.yaml",
)


def example() -> dict[str, str]:
    """Return what .env.example sets."""
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def load(name: str) -> dict[str, Any]:
    """Return a compose file with the defaults of its variables."""
    text = VARIABLE.sub(lambda match: match[2], (DEPLOY / name).read_text())
    assert "${" not in text, "a variable without a default"
    return dict(yaml.safe_load(text))


def test_the_example_lists_every_variable_with_its_default() -> None:
    used: dict[str, str] = {}
    for name in ("compose.yaml", "compose.pull.yaml"):
        used |= VARIABLE.findall((DEPLOY / name).read_text())
    # The project's name is compose's own variable; compose.join.yaml has the name of its network.
    assert example() == {**used, "COMPOSE_PROJECT_NAME": "quire"}
    assert load("compose.join.yaml")["networks"]["routers"]["name"] == "quire_back"


@pytest.mark.parametrize("name", FILES)
def test_a_variable_means_the_same_in_all_files(name: str) -> None:
    larger_on_gpus = {"QUIRE_WORKER_CPUS", "QUIRE_WORKER_MEMORY"}
    for variable, default in VARIABLE.findall((DEPLOY / name).read_text()):
        if variable in example() and not (
            name == "compose.gpu.yaml" and variable in larger_on_gpus
        ):
            assert example()[variable] == default


@pytest.mark.parametrize("service", ["router", "scheduler", "worker-0", "worker-1"])
def test_every_option_is_one_of_the_command(service: str) -> None:
    group: Any = typer.main.get_command(app)
    command = group.commands[service.partition("-")[0]]
    arguments = shlex.split(load("compose.yaml")["services"][service]["command"])
    # Raises if it does not know an option, or a value is not of its type.
    command.make_context(service, arguments)


def test_a_pull_is_as_confined_as_the_services() -> None:
    pull, worker = load("compose.pull.yaml")["services"]["pull"], load("compose.yaml")["services"]
    for key in ("user", "read_only", "cap_drop", "security_opt", "tmpfs", "pids_limit", "image"):
        assert pull[key] == worker["worker-0"][key], key
    command: Any = typer.main.get_command(app)
    assert pull["entrypoint"] == ["quire", "pull"]
    command.commands["pull"].make_context("pull", list(pull["command"]))


def test_nothing_is_published_but_routers_on_the_loopback() -> None:
    services = load("compose.yaml")["services"]
    assert {name for name in services if "ports" in services[name]} == {"router"}
    assert services["router"]["ports"] == [
        "127.0.0.1:50051:50051",
        "127.0.0.1:8000:8000",
    ]


def test_each_worker_of_the_gpu_file_has_a_gpu_of_its_own() -> None:
    services = load("compose.gpu.yaml")["services"]
    workers = {name for name in load("compose.yaml")["services"] if name.startswith("worker")}
    assert services.keys() == workers
    taken = []
    for service in services.values():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        taken += device["device_ids"]
        assert service["image"] == "quire-worker-cuda:dev"
        assert "shm_size" in service
    assert len(taken) == len(set(taken)) == len(workers)


def test_a_stop_is_given_more_time_than_a_drain_takes() -> None:
    for name in ("router", "scheduler"):
        service = load("compose.yaml")["services"][name]
        arguments = shlex.split(service["command"])
        drain = float(arguments[arguments.index("--drain-timeout-s") + 1])
        assert float(service["stop_grace_period"].removesuffix("s")) >= drain + 10


def test_prometheus_scrapes_every_service_at_a_name_that_it_can_look_up() -> None:
    file = DEPLOY / "monitoring" / "prometheus.compose.yml"
    jobs = {each["job_name"]: each for each in yaml.safe_load(file.read_text())["scrape_configs"]}
    networks = set(load("compose.monitoring.yaml")["services"]["prometheus"]["networks"])
    found = set()
    for job, config in jobs.items():
        (lookup,) = config["dns_sd_configs"]
        assert lookup["port"] == 9090
        for name, service in load("compose.yaml")["services"].items():
            attached = dict.fromkeys(service["networks"]) | (
                service["networks"] if isinstance(service["networks"], dict) else {}
            )
            reached = networks & attached.keys()
            aliases = {
                alias for each in reached for alias in (attached[each] or {}).get("aliases", ())
            }
            if reached and {name, *aliases} & set(lookup["names"]):
                assert job == f"quire-{name.partition('-')[0]}"
                found.add(name)
    assert found == load("compose.yaml")["services"].keys()
