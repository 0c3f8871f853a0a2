"""Runs rendered pods with a container engine, as declared: what a kubelet does, in small.

One container for each pod, on a network of its own. Names come from the Services that select a pod
and from its StatefulSet; a Service's names have the addresses of all its pods, as a headless one's
do. Deleted pods are made again under their name, as their owner's controller would.
"""

import http.client
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compose.stack import HANGS_AFTER_S
from tools.manifests.environment import arguments, environment, parse_quantity
from tools.manifests.objects import Manifests, Object, PodTemplate


def docker(*arguments: str, timeout_s: float = HANGS_AFTER_S) -> str:
    """Return what a command of the engine prints; it must succeed."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


def why_not(manifests: Manifests) -> str | None:
    """Return why the pods cannot run here, or None if they can."""
    if shutil.which("docker") is None:
        return "pods of the manifests: the command docker is missing (apt-get install docker.io)"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        return "pods of the manifests: no Docker engine answers (start dockerd)"
    for image in sorted({pod.main["image"] for pod in manifests.pods}):
        command = ["docker", "image", "inspect", image]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return f"pods of the manifests: there is no image {image} (make images)"
    return None


@dataclass
class Pod:
    """One pod that runs.

    Attributes:
        template: that it is made from.
        ordinal: which of its owner's it is.
        container: id of its container.
        address: in the pods' network.
        gpus: numbers of those that it has.
    """

    template: PodTemplate
    ordinal: int
    container: str
    address: str
    gpus: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.template.pod_name(self.ordinal)

    def execute(self, *command: str) -> str:
        """Return what a command prints inside."""
        return docker("exec", self.container, *command)

    def probe(self, name: str) -> int:
        """Ask as a kubelet does, from outside, and return the HTTP status; 0 without an answer."""
        declared = self.template.main[name]
        get = declared["httpGet"]
        port = self.template.ports[get["port"]]
        timeout_s = declared.get("timeoutSeconds", 1)
        connection = http.client.HTTPConnection(self.address, port, timeout=timeout_s)
        try:
            connection.request("GET", get["path"])
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def wait_for(self, probe: str) -> None:
        """Return when a probe succeeds, within the time that the startup probe allows."""
        startup = self.template.main["startupProbe"]
        patience_s = max(startup["periodSeconds"] * startup["failureThreshold"], HANGS_AFTER_S)
        deadline = time.monotonic() + patience_s
        while (status := self.probe(probe)) != 200:
            assert time.monotonic() < deadline, (
                f"{self.name}: {probe} returns {status}: {self.logs()}"
            )
            time.sleep(0.1)

    def logs(self) -> str:
        done = subprocess.run(
            ["docker", "logs", "--tail", "40", self.container],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr


class Kubelet:
    """Makes the pods of manifests run.

    Args:
        manifests: rendered.
        name: of the network, and first part of all containers' names.
        directory: for the files of Secrets and of PersistentVolumeClaims; each is a directory
            `secrets/NAME` or `claims/NAME`, made beforehand.
    """

    def __init__(self, manifests: Manifests, name: str, directory: Path) -> None:
        self.manifests = manifests
        self.pods: dict[str, Pod] = {}
        self.network = name
        self._directory = directory

    def start(self) -> None:
        """Run every Job to its end, then make every other pod, all at once."""
        docker("network", "create", self.network)
        for template in self.manifests.pods:
            if template.ends:
                self.run_job(template)
        for template in self.manifests.pods:
            if template.ends:
                continue
            for ordinal in range(template.replicas):
                self._make(template, ordinal)

    def wait_ready(self) -> None:
        """Return when every pod has started and is ready, by the probes that it declares."""
        for pod in self.pods.values():
            pod.wait_for("startupProbe")
        for pod in self.pods.values():
            pod.wait_for("readinessProbe")

    def of(self, command: str) -> list[Pod]:
        """Return the pods that run a command of quire, in order."""
        return [pod for pod in self.pods.values() if pod.template.command == command]

    def stop(self) -> None:
        """Remove every pod and the network."""
        for pod in self.pods.values():
            subprocess.run(["docker", "rm", "-f", pod.container], capture_output=True, check=False)
        subprocess.run(["docker", "network", "rm", self.network], capture_output=True, check=False)

    def delete(self, name: str) -> int:
        """Delete a pod: SIGTERM, its grace period, SIGKILL. Returns its exit status."""
        pod = self.pods.pop(name)
        grace = pod.template.spec["terminationGracePeriodSeconds"]
        docker("stop", "--time", str(grace), pod.container, timeout_s=grace + 60)
        status = int(docker("inspect", "--format", "{{.State.ExitCode}}", pod.container))
        docker("rm", pod.container)
        return status

    def make_again(self, template: PodTemplate, ordinal: int) -> Pod:
        """Make a deleted pod anew, as its owner's controller does."""
        return self._make(template, ordinal)

    def run_client(self, *command: str, secret: str = "", environment: str = "") -> str:
        """Return what a command of quire prints in a pod of a client."""
        image = self.of("router")[0].template.main["image"]
        mounts = ["--volume", f"{self._secret(secret)}:/tls:ro"] if secret else []
        variables = ["--env", environment] if environment else []
        return docker(
            *("run", "--rm", "--network", self.network, "--entrypoint", "quire", "--user", "10001"),
            *(*mounts, *variables, image, *command),
        )

    def logs(self) -> str:
        return "\n".join(f"---- {pod.name}\n{pod.logs()}" for pod in self.pods.values())

    def run_job(self, template: PodTemplate) -> str:
        """Return what a Job's pod prints, which must succeed; it finds this host's loopback."""
        main = template.main
        values = environment(self.manifests, template, main)
        entry, *rest = main["command"]
        return docker(
            *("run", "--rm", "--network", "host", "--entrypoint", entry),
            *self._declared(template, values),
            *(main["image"], *rest, *arguments(main, values)),
        )

    # ---------------------------------------------------------------- one pod

    def _make(self, template: PodTemplate, ordinal: int) -> Pod:
        name, main = template.pod_name(ordinal), template.main
        values = environment(self.manifests, template, main, ordinal)
        gpus = self._free_gpus(int(main["resources"]["limits"].get("nvidia.com/gpu", 0)))
        container = docker(
            *("run", "--detach", "--name", f"{self.network}-{name}", "--hostname", name),
            *("--restart", "always", "--network", self.network),
            *[
                part
                for alias in self._aliases(template, name)
                for part in ("--network-alias", alias)
            ],
            *(("--gpus", f'"device={",".join(map(str, gpus))}"') if gpus else ()),
            *self._declared(template, values),
            main["image"],
            *arguments(main, values),
        )
        network = json.loads(docker("inspect", container))[0]["NetworkSettings"]["Networks"]
        address = network[self.network]["IPAddress"]
        pod = Pod(template, ordinal, container, address, gpus)
        self.pods[name] = pod
        return pod

    def _declared(self, template: PodTemplate, values: dict[str, str]) -> list[str]:
        """Return the engine's options for what a pod and its container declare."""
        variables = [part for item in values.items() for part in ("--env", "=".join(item))]
        return [
            *_limits(template.main),
            *_security(template),
            *self._volumes(template),
            *variables,
        ]

    def _free_gpus(self, count: int) -> tuple[int, ...]:
        """Return the first GPUs of the node that no pod has, as NVIDIA's device plugin chooses."""
        taken = {gpu for pod in self.pods.values() for gpu in pod.gpus}
        return tuple(gpu for gpu in range(len(taken) + count) if gpu not in taken)[:count]

    def _aliases(self, template: PodTemplate, name: str) -> list[str]:
        """Return the names under which a pod is found."""
        services = self.manifests.of_kind("Service")
        selected = [
            each["metadata"]["name"]
            for each in services
            if template in self.manifests.selected({"matchLabels": each["spec"]["selector"]})
        ]
        if template.owner["kind"] == "LeaderWorkerSet":
            # Its controller makes a headless Service of its own name.
            own = template.owner["metadata"]["name"]
            in_full = f"{name}.{own}.{template.owner['metadata']['namespace']}"
            return [*selected, f"{name}.{own}", in_full]
        own = template.owner["spec"].get("serviceName")
        return [*selected, f"{name}.{own}"] if own else selected

    def _volumes(self, template: PodTemplate) -> list[str]:
        volumes = {volume["name"]: volume for volume in template.spec["volumes"]}
        options = []
        for mount in template.main["volumeMounts"]:
            volume, path = volumes[mount["name"]], mount["mountPath"]
            if "emptyDir" in volume:
                size = int(parse_quantity(volume["emptyDir"]["sizeLimit"]))
                options += ["--tmpfs", f"{path}:rw,mode=1777,size={size}"]
            elif "secret" in volume:
                source = self._secret(volume["secret"]["secretName"])
                assert source.is_dir() or volume["secret"].get("optional"), source
                source.mkdir(parents=True, exist_ok=True)
                options += ["--volume", f"{source}:{path}:ro"]
            elif "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]
                source = self._directory / "claims" / claim["claimName"]
                assert source.is_dir(), source
                read_only = claim.get("readOnly") or mount.get("readOnly")
                options += ["--volume", f"{source}:{path}{':ro' if read_only else ''}"]
            else:
                raise AssertionError(f"no way to mount {volume}")
        return options

    def _secret(self, name: str) -> Path:
        return self._directory / "secrets" / name


def _limits(container: Object) -> list[str]:
    limits: dict[str, Any] = container["resources"]["limits"]
    options = ["--memory", str(int(parse_quantity(limits["memory"])))]
    if "cpu" in limits:
        cpus = min(parse_quantity(limits["cpu"]), os.cpu_count() or 1)
        options += ["--cpus", f"{cpus:g}"]
    return options


def _security(template: PodTemplate) -> list[str]:
    """Return the options of a pod's and its container's securityContext; seccomp's are default."""
    pod, container = template.spec["securityContext"], template.main["securityContext"]
    options = ["--user", f"{pod['runAsUser']}:{pod['runAsGroup']}"]
    options += ["--group-add", str(pod["fsGroup"])]
    for sysctl in pod.get("sysctls", []):
        options += ["--sysctl", f"{sysctl['name']}={sysctl['value']}"]
    for capability in container["capabilities"]["drop"]:
        options += ["--cap-drop", capability]
    if container["readOnlyRootFilesystem"]:
        options.append("--read-only")
    if not container["allowPrivilegeEscalation"]:
        options += ["--security-opt", "no-new-privileges"]
    return options
