"""Results of lanes, each for a digest of what the lane depends on, committed with the sources."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.lanes import machine
from tools.lanes.inputs import RESULTS, Tree
from tools.lanes.lane import ROOT, Lane


@dataclass(frozen=True, slots=True)
class Result:
    """That a lane passed, and on what.

    Attributes:
        lane: its name.
        digest: of all that the lane depends on, which are the attributes from `command` to
            `inputs`.
        command: that ran.
        environment: variables beside the runner's own.
        kind: instruction sets of the processor; empty for a lane whose result does not depend on
            them.
        toolchain: versions by name.
        distributions: versions of packages of Python by name.
        inputs: digests of files and folders of the repository by name.
        processor: for people.
        date: day of the run.
        commit: of the run.
        tests: that ran or were skipped.
        skipped: numbers of tests by the reason.
        cases: lines that say how many cases ran of how many there are.
        wall_s: seconds from start to end.
        cpu_s: seconds of CPU time.
    """

    lane: str
    digest: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    kind: tuple[str, ...]
    toolchain: Mapping[str, str]
    distributions: Mapping[str, str]
    inputs: Mapping[str, str]
    processor: str
    date: str
    commit: str
    tests: int
    skipped: Mapping[str, int]
    cases: tuple[str, ...]
    wall_s: float
    cpu_s: float

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Return what `write` wrote.

        Raises:
            ValueError: it was changed since.
        """
        try:
            fields = json.loads(path.read_text())
            for name in ("command", "kind", "cases"):
                fields[name] = tuple(fields[name])
            result = cls(**fields)
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"{path.name}: must be as .ci/run wrote it, got {error}") from error
        if result.digest != result.computed_digest():
            raise ValueError(f"{path.name}: must be as .ci/run wrote it, got another digest")
        return result

    def write(self) -> None:
        """Write it into `RESULTS`, in the place of the last one of the lane and kind."""
        path = path_of(self.lane, self.kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        new.replace(path)

    def computed_digest(self) -> str:
        """Return the digest of what the result says that the lane depends on."""
        return digest_of(
            {
                "command": self.command,
                "environment": self.environment,
                "kind": self.kind,
                "toolchain": self.toolchain,
                "distributions": self.distributions,
                "inputs": self.inputs,
            }
        )


def digest_of(fields: Mapping[str, object]) -> str:
    """Return a digest of JSON."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]


def path_of(lane: str, kind: tuple[str, ...]) -> Path:
    """Return where the result of a lane lies, for a kind of processor or, if empty, for all."""
    name = f"{lane}.{machine.kind_name(kind)}.json" if kind else f"{lane}.json"
    return ROOT / RESULTS / name


def kind_of(lane: Lane) -> tuple[str, ...]:
    """Return the kind of processor for which a result of a lane on this machine stands."""
    return machine.instruction_sets() if lane.arithmetic else ()


def plain_command(lane: Lane) -> tuple[str, ...]:
    """Return a lane's command without the path of this checkout."""
    return tuple(part.replace(f"{ROOT}/", "") for part in lane.command)


def plain_environment(lane: Lane) -> dict[str, str]:
    """Return a lane's variables without the path of this checkout."""
    return {k: v.replace(f"{ROOT}/", "") for k, v in sorted(lane.environment.items())}


def stored(lane: Lane) -> Result | None:
    """Return the stored result of a lane for this kind of processor, or None.

    Raises:
        ValueError: it was changed by another than `Result.write`.
    """
    path = path_of(lane.name, kind_of(lane))
    return Result.read(path) if path.exists() else None


def changes(
    result: Result, lane: Lane, tree: Tree, versions: Mapping[str, str] | None
) -> list[str]:
    """Return what a lane depends on that is not as it was when the result was stored.

    Args:
        result: of the lane.
        lane: as it is now.
        tree: the repository as it is now.
        versions: of packages of Python; None if they are not known, and taken to be the same.

    Returns:
        Names of files and packages; none if the result stands.
    """
    found = []
    if (result.command, dict(result.environment)) != (plain_command(lane), plain_environment(lane)):
        found.append("its command")
    # What is not here yet is installed before lanes run, as the last version there is.
    found += [
        f"{name} {version}"
        for name, version in machine.toolchain().items()
        if result.toolchain.get(name) != version
    ]
    if versions is not None:
        found += [
            f"package {name}"
            for name, version in result.distributions.items()
            if versions.get(name) != version
        ]
    return found + [name for name, digest in result.inputs.items() if tree.digest(name) != digest]
