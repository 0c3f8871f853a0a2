"""The virtual environments of the engines, under build/peers, as engines.toml pins them."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "peers"
OURS = "quire"

Recipe = dict[str, Any]


def recipes() -> dict[str, Recipe]:
    """Return what each peer's environment is made of, by name."""
    return tomllib.loads((Path(__file__).parent / "engines.toml").read_text())


def python_of(engine: str) -> Path:
    """Return the interpreter that runs an engine."""
    return Path(sys.executable) if engine == OURS else BUILD / engine / "bin" / "python"


def missing(engine: str) -> str:
    """Return why an engine cannot be run, or "" if it can."""
    if engine == OURS:
        return ""
    if _stamp(engine) != json.dumps(recipes()[engine]):
        return f"not installed as engines.toml says: python -m bench.peers setup {engine}"
    return ""


def _stamp(engine: str) -> str:
    path = BUILD / engine / "installed.json"
    return path.read_text() if path.exists() else ""


def setup(engine: str) -> None:
    """Make the environment of an engine, unless it is there.

    Raises:
        subprocess.CalledProcessError: a step failed; its output is in build/peers/ENGINE.log.
    """
    if not missing(engine):
        return
    recipe, home = recipes()[engine], BUILD / engine
    shutil.rmtree(home, ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{engine}.log").open("w") as log:

        def run(*command: str | Path) -> None:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=BUILD, check=True)

        run(sys.executable, "-m", "venv", home)
        pip = (home / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", "--progress-bar", "off", *recipe["packages"])
        if "removed" in recipe:
            run(*pip, "uninstall", "--yes", *recipe["removed"])
    (home / "installed.json").write_text(json.dumps(recipe))
