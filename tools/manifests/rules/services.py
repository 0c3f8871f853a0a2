"""Services and routes: what they select, and the ports that they lead to."""

from collections.abc import Iterator
from itertools import product

from tools.manifests.objects import Finding, Manifests, Object, where


def check_services(manifests: Manifests) -> Iterator[Finding]:
    """Each port of a Service is one that all its pods have; each backend is such a Service."""
    for service in manifests.of_kind("Service"):
        for rule, advice in _service(manifests, service):
            yield Finding(where(service), rule, advice)
    for each in manifests.of_kind("StatefulSet"):
        service_name = each["spec"].get("serviceName", "")
        service = manifests.find("Service", service_name) or {}
        if service.get("spec", {}).get("clusterIP") != "None":
            advice = f"serviceName {service_name!r} must be a headless Service: its pods' names"
            yield Finding(where(each), "service-name", advice)
        elif not service["spec"].get("publishNotReadyAddresses"):
            advice = "set publishNotReadyAddresses: a cell meets by name before it is ready"
            yield Finding(where(service), "service-name", advice)
    yield from _routes(manifests)
    yield from _monitors(manifests)


def _service(manifests: Manifests, service: Object) -> Iterator[tuple[str, str]]:
    spec = service["spec"]
    pods = manifests.selected({"matchLabels": spec.get("selector", {})})
    if not pods:
        yield "service-selector", "it selects no pods"
    if len({pod.command for pod in pods}) > 1:
        yield "service-selector", "it selects pods of several services"
    for port in spec["ports"]:
        target = port.get("targetPort", port["port"])
        for pod in pods:
            number = pod.ports.get(target) if isinstance(target, str) else target
            if number not in pod.ports.values():
                yield "service-port", f"targetPort {target} is no port of {pod.where}"
            elif number != port["port"]:
                yield "service-port", f"port {port['port']} leads to {number}: use one number"
    if spec.get("type", "ClusterIP") != "ClusterIP":
        yield "service-type", "keep it inside: a route or an overlay of yours lets others in"


def _routes(manifests: Manifests) -> Iterator[Finding]:
    kinds: dict[tuple[str, ...], str] = {}
    for route in manifests.of_kind("GRPCRoute", "HTTPRoute"):
        for rule in route["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                if advice := _wrong_backend(manifests, backend):
                    yield Finding(where(route), "route", advice)
        for parent, host in product(
            route["spec"]["parentRefs"], route["spec"].get("hostnames", [""])
        ):
            listener = (parent.get("namespace", ""), parent["name"], parent.get("sectionName", ""))
            if (kind := kinds.setdefault((*listener, host), route["kind"])) != route["kind"]:
                advice = f"give it another host name than {host!r}, which is that of a {kind}"
                yield Finding(where(route), "route", advice)


def _wrong_backend(manifests: Manifests, backend: Object) -> str:
    """Return what to do about where a route leads, "" for nothing."""
    if backend.get("kind", "Service") != "Service":
        found = manifests.find(backend["kind"], backend["name"])
        is_one = found and found["apiVersion"].partition("/")[0] == backend.get("group")
        return "" if is_one else f"backend {backend['kind']} {backend['name']} is not here"
    service = manifests.find("Service", backend["name"])
    ports = [port["port"] for port in service["spec"]["ports"]] if service else []
    if backend.get("port") in ports:
        return ""
    return f"backend {backend['name']}:{backend.get('port')} is no Service's port"


def _monitors(manifests: Manifests) -> Iterator[Finding]:
    for monitor in manifests.of_kind("ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            counts = {pod.where: 0 for pod in manifests.pods if not pod.is_picker}
            for service in manifests.of_kind("Service"):
                wanted = monitor["spec"]["selector"].get("matchLabels", {})
                labels = service["metadata"].get("labels", {})
                if any(labels.get(key) != value for key, value in wanted.items()):
                    continue
                if endpoint["port"] in {port.get("name") for port in service["spec"]["ports"]}:
                    for pod in manifests.selected({"matchLabels": service["spec"]["selector"]}):
                        counts[pod.where] += 1
            for name, count in counts.items():
                if count != 1:
                    advice = f"{name} must be read once, by one Service, not {count} times"
                    yield Finding(where(monitor), "monitor", advice)
