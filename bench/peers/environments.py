"""The virtual environments of the engines, under build/peers, as engines.toml pins them."""

import json
import shutil
import subprocess
import sys
import tarfile
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
        if "source" in recipe:
            source = home / "source"
            run(
                *(*pip, "download", "--no-deps", "--no-binary", "llama-cpp-python"),
                *("--dest", source, recipe["source"]),
            )
            with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
                archive.extractall(source, filter="data")
            build_llama_server(run, home, next(source.glob("*/vendor/llama.cpp")))
    (home / "installed.json").write_text(json.dumps(recipe))


def build_llama_server(run: Any, home: Path, source: Path) -> None:
    """Build llama-server for this processor, without its web page, which would be fetched."""
    cmake = home / "bin" / "cmake"
    build = home / "llama"
    run(
        *(cmake, "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"),
        f"-DCMAKE_MAKE_PROGRAM={home / 'bin' / 'ninja'}",
        *("-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF"),
        *("-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_OPENSSL=OFF"),
        *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
    )
    run(cmake, "--build", build, "--target", "llama-server")
