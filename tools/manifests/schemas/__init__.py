"""Objects have the fields that Kubernetes and its extensions know, with values of their types.

Kubernetes' own come from its OpenAPI description, as kubernetes-validate packages it. For the
extensions that the components use, the files beside this one hold the part of them that is used.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

from tools.manifests.objects import Finding, Manifests, Object, pod_templates, where

# The oldest that has all that is used (matchLabelKeys in affinity), and the newest that is known.
VERSIONS = ("1.31", "1.37")


def check_schemas(manifests: Manifests) -> Iterator[Finding]:
    """Validate every object, and every pod in an extension's object as a pod."""
    for each in manifests.objects:
        extension = _extensions().get((each.get("apiVersion", ""), each["kind"]))
        messages = _built_in(each) if extension is None else _extension(each, extension)
        for message in messages:
            yield Finding(where(each), "schema", message)


@cache
def _extensions() -> dict[tuple[str, str], Any]:
    schemas = [json.loads(path.read_text()) for path in Path(__file__).parent.glob("*.json")]
    return {
        (schema["properties"]["apiVersion"]["const"], schema["properties"]["kind"]["const"]): schema
        for schema in schemas
    }


def _built_in(each: Object) -> tuple[str, ...]:
    return _validated(json.dumps(each, sort_keys=True))


@cache
def _validated(text: str) -> tuple[str, ...]:
    """Validate an object, as JSON, once: reading its schema takes most of the time."""
    each = json.loads(text)
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            return (f"{path}: {error.message} (Kubernetes {version})",)
        except kubernetes_validate.SchemaNotFoundError:
            api = each.get("apiVersion")
            return (f"{api} is unknown to Kubernetes {version}, and has no schema",)
    return ()


def _extension(each: Object, schema: Any) -> Iterator[str]:
    errors = list(jsonschema.Draft7Validator(schema).iter_errors(each))
    for error in errors:
        yield f"{'.'.join(map(str, error.path))}: {error.message}"
    if errors:
        return
    for pod in pod_templates(each):
        as_pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": each["metadata"]["name"], "labels": dict(pod.labels)},
            "spec": pod.spec,
        }
        for message in _built_in(as_pod):
            yield f"{pod.part}: {message}"
