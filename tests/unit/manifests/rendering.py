"""Rendered overlays, each rendered once, and changes planted in them."""

import copy
from functools import cache
from pathlib import Path

from tools.deploy import check
from tools.manifests.objects import Finding, Manifests, Object
from tools.manifests.render import ROOT, Release, render
from tools.manifests.rules import RULES

OVERLAYS = ("cpu", "gpu", "lws", "prod", "ray")
DELETE = object()


@cache
def rendered(overlay: str, *components: str, tag: str = "v1") -> Manifests:
    release = Release(overlay, tag, registry="registry.example", components=components)
    directory = (
        ROOT / "build" / "test_manifests" / "-".join((overlay, *components)).replace("/", "-")
    )
    return render(release, Path(directory))


def fresh(overlay: str, *components: str) -> list[Object]:
    return copy.deepcopy(rendered(overlay, *components).objects)


def find(objects: list[Object], where: str) -> Object:
    kind, _, name = where.partition("/")
    for each in objects:
        # What is generated has a hash at its end.
        if each["kind"] == kind and each["metadata"]["name"].startswith(name):
            return each
    raise AssertionError(f"no {where}")


def plant(each: Object, path: str, value: object) -> None:
    """Set what is at a path of keys and positions, with a space between; DELETE removes it."""
    *steps, last = (int(step) if step.isdecimal() else step for step in path.split())
    for step in steps:
        each = each[step]
    if value is DELETE:
        del each[last]
    elif isinstance(each, list) and last == len(each):
        each.append(value)
    else:
        each[last] = value


def findings(objects: list[Object]) -> list[Finding]:
    return check(Manifests(objects))


def broken_rules(objects: list[Object]) -> list[Finding]:
    manifests = Manifests(objects)
    return [finding for rule in RULES for finding in rule(manifests)]
