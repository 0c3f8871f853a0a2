"""Arguments and variables of containers: `quire` takes them, and they agree with the objects."""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import typer

from launch.cli.main import app
from quire.contract.addresses import split_address
from quire.contract.errors import ConfigError
from tools.manifests.environment import arguments, environment, unresolved
from tools.manifests.objects import Finding, Manifests, PodTemplate

# Of every complaint about a command line. Typer has its own copy of click in some versions only.
UsageError: Any = typer.BadParameter.__base__
# Beside the time that services are given to drain, for the rest of their end.
GRACE_MARGIN_S = 10
# The name of the port that each option is of; `quire serve` has vLLM's names.
PORTS = {"port": "grpc", "http_port": "http", "admin_port": "admin"}
SERVE_PORTS = {"port": "http", "grpc_port": "grpc", "admin_port": "admin"}
# Variables that arguments name, and those that several commands read under one name.
SHARED_VARIABLES = frozenset({"QUIRE_MODEL", "QUIRE_TLS_DIR", "QUIRE_INSECURE", "QUIRE_API_KEYS"})


def check_options(manifests: Manifests) -> Iterator[Finding]:
    """Parse each command line as its container will, and compare it with what surrounds it."""
    for pod in manifests.pods:
        if pod.command not in _commands() or not pod.runs_quire:
            continue  # a wrong label is found elsewhere
        for ordinal in range(max(1, min(pod.replicas, 2))):
            for rule, advice in _pod(manifests, pod, ordinal):
                yield Finding(pod.where, rule, advice)


@cache
def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    commands: dict[str, Any] = group.commands
    return commands


def parse(command: str, args: list[str], values: dict[str, str]) -> dict[str, Any]:
    """Return the options of a command line by name, as the service will read it.

    Raises:
        UsageError: it will not.
    """
    others = {key: value for key, value in os.environ.items() if not key.startswith("QUIRE_")}
    with patch.dict(os.environ, {**others, **values}, clear=True):
        context = _commands()[command].make_context(
            command, list(args), auto_envvar_prefix=f"QUIRE_{command.upper()}"
        )
    params: dict[str, Any] = context.params
    # Numbers are texts until a command reads them; one that has none reads nothing.
    read = getattr(context.command.callback, "read_options", dict)
    try:
        params |= read(params)
    except ConfigError as error:
        raise UsageError(error.message) from None
    return params


def _pod(manifests: Manifests, pod: PodTemplate, ordinal: int) -> Iterator[tuple[str, str]]:
    if pod.spec.get("enableServiceLinks", True):
        yield (
            "service-links",
            "set enableServiceLinks: false: QUIRE_ROUTER_PORT of a Service named quire-router "
            "would be read as an option",
        )
    values = environment(manifests, pod, pod.main, ordinal)
    args = arguments(pod.main, values)
    for name in unresolved(args):
        yield "arguments", f"$({name}) has no value"
    yield from _variables(values)
    # An image's entry point, unless the container has another.
    command = pod.main.get("command", ["quire", pod.command])[1]
    try:
        options = parse(command, args, values)
    except UsageError as error:
        yield "arguments", f"quire {command} refuses them: {error.format_message()}"
        return
    if pod.ends:
        yield from _target(pod, options)
        return
    yield from _ports(pod, options, SERVE_PORTS if command == "serve" else PORTS)
    yield from _times(pod, options)
    yield from _hosts(manifests, pod, options)
    yield from _secrets(pod, values)
    if command == "worker":
        rank = (options["rank"] or 0) - options["rank_base"]
        if options["rank"] is None or rank != ordinal:
            yield "rank", f"worker {ordinal} would take rank {rank}"
        if options["device"] != "cuda" and not options["insecure"]:
            yield "ranks", "pods on CPUs exchange tensors in the clear, which takes --insecure"


def _variables(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    known = set(SHARED_VARIABLES)
    for name, command in _commands().items():
        known.update(
            f"QUIRE_{name}_{parameter.name}".upper()
            for parameter in command.params
            if parameter.param_type_name == "option"
        )
    for name in sorted(values):
        if name.startswith("QUIRE_") and name not in known:
            yield "variables", f"{name} is no option: nothing reads it"


def _target(pod: PodTemplate, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    directory = str(options["directory"])
    writable = [
        mount["mountPath"]
        for mount in pod.main.get("volumeMounts", [])
        if not mount.get("readOnly")
    ]
    if directory not in writable:
        yield "model", f"mount a volume that can be written at {directory}"


def _ports(
    pod: PodTemplate, options: dict[str, Any], ports: dict[str, str]
) -> Iterator[tuple[str, str]]:
    for option, port in ports.items():
        if options.get(option) != pod.ports.get(port):
            flag = option.replace("_", "-")
            yield (
                "ports",
                f"--{flag} {options.get(option)} is not port {port} {pod.ports.get(port)}",
            )
    for option in ("host", "admin_host"):
        if options.get(option) != "0.0.0.0":
            flag = option.replace("_", "-")
            yield "ports", f"--{flag} {options.get(option)}: others cannot reach it; use 0.0.0.0"


def _times(pod: PodTemplate, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    grace = pod.spec.get("terminationGracePeriodSeconds", 30)
    drain = options.get("drain_timeout_s", 0) + options.get("drain_delay_s", 0)
    if grace < drain + GRACE_MARGIN_S:
        yield (
            "grace",
            f"terminationGracePeriodSeconds {grace}: it drains for {drain:g} s, and needs "
            f"{GRACE_MARGIN_S} more",
        )


def _hosts(
    manifests: Manifests, pod: PodTemplate, options: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    if pod.owner["kind"] in ("LeaderWorkerSet", "RayCluster"):
        return  # its controller makes the names
    called = [*(options.get("scheduler_dns") or []), *(options.get("schedulers") or [])]
    if options.get("announce_to"):
        called.append(options["announce_to"])
    for address in called:
        host, port = split_address(address)
        service = manifests.find("Service", host.partition(".")[0])
        if service is None:
            yield "address", f"{address}: there is no such Service"
            continue
        if int(port) not in [each["port"] for each in service["spec"]["ports"]]:
            yield "address", f"{address}: Service {host} has no such port"
        chosen = manifests.selected({"matchLabels": service["spec"]["selector"]})
        if {each.command for each in chosen} != {"scheduler"}:
            yield "address", f"{address}: Service {host} selects no schedulers, or more than those"
        if pod.command == "worker" and {each.cell for each in chosen} != {pod.cell}:
            yield "address", f"{address}: that is the scheduler of another cell"
    advertised = options.get("advertise_host")
    if advertised and advertised.partition(".")[2] != pod.owner["spec"].get("serviceName"):
        yield "address", f"--advertise-host {advertised}: not a name that its serviceName gives"


def _secrets(pod: PodTemplate, values: dict[str, str]) -> Iterator[tuple[str, str]]:
    mounts = {mount["mountPath"]: mount["name"] for mount in pod.main.get("volumeMounts", [])}
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}

    def required(path: str) -> bool:
        secret = volumes.get(mounts.get(path, ""), {}).get("secret", {})
        return bool(secret) and not secret.get("optional")

    tls_dir = values.get("QUIRE_TLS_DIR", "")
    is_clear = values.get("QUIRE_INSECURE", "0") == "1"
    if tls_dir and not required(tls_dir):
        yield "tls", f"mount a Secret, and not an optional one, at {tls_dir}"
    if bool(tls_dir) == is_clear:
        yield "tls", "set either QUIRE_TLS_DIR or QUIRE_INSECURE=1"
    keys = values.get("QUIRE_API_KEYS", "")
    if keys and pod.command == "router" and not required(keys.rpartition("/")[0]):
        yield "keys", f"mount a Secret, and not an optional one, at {keys.rpartition('/')[0]}"
    model = values.get("QUIRE_MODEL", "")
    if model and model not in mounts:
        yield "model", f"mount a volume with the model at {model}"
