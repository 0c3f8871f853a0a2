"""Secrets as files: what cert-manager makes of Certificates, and the keys of clients."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.manifests.objects import Manifests

QUIRE = str(Path(sys.executable).parent / "quire")


def make_certificates(manifests: Manifests, directory: Path) -> None:
    """Make each Certificate's Secret, `directory/secrets/NAME`, signed by one authority."""
    certificates = {
        each["metadata"]["name"]: each["spec"] for each in manifests.of_kind("Certificate")
    }
    hosts = certificates["quire-router"]["dnsNames"]
    options = [part for host in hosts for part in ("--host", host)]
    _quire("certs", str(directory / "certs"), *options)
    for name, spec in certificates.items():
        made = directory / "certs" / name.removeprefix("quire-")
        if not spec.get("isCA"):
            give(shutil.copytree(made, directory / "secrets" / spec["secretName"]))


def make_key(directory: Path) -> str:
    """Make the Secret of the API keys with one in it, which is returned."""
    secret = directory / "secrets" / "quire-api-keys"
    secret.mkdir(parents=True)
    printed = _quire("keys", "add", "tests", "--file", str(secret / "keys.jsonl"))
    give(secret)
    return next(word for word in printed.split() if word.startswith("quire-"))


def give(directory: Path) -> None:
    """Set mode and owner as a kubelet does for fsGroup 10001 and defaultMode 0440."""
    for file in directory.iterdir():
        os.chown(file, 0, 10001)
        file.chmod(0o440)
    directory.chmod(0o755)


def _quire(*arguments: str) -> str:
    done = subprocess.run([QUIRE, *arguments], capture_output=True, text=True, check=True)
    return done.stdout
