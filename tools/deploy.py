"""`make deploy`: render an overlay for a tag, check it, and put it onto a cluster.

It writes build/deploy/OVERLAY.yaml, and prints every finding as `OVERLAY/Kind/name: rule: what to
do`; with any, nothing is applied.
"""

import argparse
import sys
from pathlib import Path

import yaml

from tools.manifests.cluster import Cluster
from tools.manifests.objects import Finding, ManifestError, Manifests
from tools.manifests.render import ROOT, Release, render
from tools.manifests.rules import RULES
from tools.manifests.rules.references import needed_before
from tools.manifests.schemas import check_schemas


def check(manifests: Manifests) -> list[Finding]:
    """Return everything that is wrong with manifests, each once."""
    findings = list(check_schemas(manifests))
    if not findings:  # the rules rely on fields being where they belong
        findings = [finding for rule in RULES for finding in rule(manifests)]
    return list(dict.fromkeys(findings))


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="make deploy", description=__doc__)
    parser.add_argument("--overlay", required=True, help="directory of deploy/k8s/overlays")
    parser.add_argument("--tag", required=True, help="version of the images, not 'latest'")
    parser.add_argument("--registry", default="", help="registry of the images")
    parser.add_argument("--namespace", default="quire")
    parser.add_argument("--components", nargs="*", default=[], help="of deploy/k8s/components")
    parser.add_argument("--apply", action="store_true", help="onto kubectl's cluster")
    options = parser.parse_args()
    try:
        release = Release(
            overlay=options.overlay,
            tag=options.tag,
            registry=options.registry,
            namespace=options.namespace,
            components=tuple(options.components),
        )
        manifests = render(release)
        findings = check(manifests)
        for finding in findings:
            print(f"{release.overlay}/{finding}", file=sys.stderr)
        if findings:
            raise ManifestError(f"{len(findings)} findings; nothing is applied")
        file = write(manifests, release)
        print(f"{file}: {len(manifests.objects)} objects, no findings")
        if options.apply:
            Cluster(release.namespace, print).apply(manifests, file)
            print("Everything is ready.")
        else:
            for (kind, name), advice in needed_before(manifests).items():
                hint = advice.replace("NAMESPACE", release.namespace)
                print(f"To be made first: {kind} {name}: {hint}")
            print("APPLY=1 puts it onto kubectl's cluster.")
    except ManifestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def write(manifests: Manifests, release: Release) -> Path:
    """Write manifests where they can be read, and return the file, relative to the project."""
    file = ROOT / "build" / "deploy" / f"{release.overlay}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump_all(manifests.objects, sort_keys=False))
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


if __name__ == "__main__":
    sys.exit(main())
