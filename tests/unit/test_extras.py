"""Which extra of pyproject.toml brings what each package imports."""

import ast
import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launch.extras import MODULES, require
from quire.contract.errors import ConfigError

ROOT = Path(__file__).parents[2]
OURS = ("quire", "launch", "router", "scheduler_svc", "worker_svc", "simulator")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = packages_distributions()
# What a package imports where it is wanted, inside a function, beyond what its extra brings.
WHERE_WANTED = {
    # quire-serve[traces]; what router and worker share of tokenizers and grammars
    "quire": {"opentelemetry", "tokenizers", "transformers", "llguidance"},
    # a cache that it filled; quire-serve[bench]; what transformers brings
    "launch": {"ray", "huggingface_hub", "aiohttp", "matplotlib", "yaml"},
    "simulator": {"torch"},
    # quire-serve[gguf]
    "worker_svc": {"gguf"},
}


def distributions(extra: str | None) -> set[str]:
    """Names of what is installed with Quire, without or with an extra."""
    lines = list(PROJECT["dependencies"])
    lines += PROJECT["optional-dependencies"][extra] if extra else []
    found: set[str] = set()
    for requirement in map(Requirement, lines):
        if requirement.name == "quire-serve":
            found |= {name for each in requirement.extras for name in distributions(each)}
        else:
            found.add(canonicalize_name(requirement.name))
    return found


def distribution_of(module: str) -> str:
    """The name of what brings a module, by which it is asked for."""
    return canonicalize_name(DISTRIBUTIONS[module][0]) if module in DISTRIBUTIONS else module


def is_checked_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported(node: ast.AST, lazily: bool) -> Iterator[str]:
    """Modules that a module imports as it is imported, or inside functions too."""
    for child in ast.iter_child_nodes(node):
        if is_checked_only(child):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not lazily:
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.module is not None
            assert child.level == 0, "a relative import"
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imported(child, lazily)


def source_of(module: str) -> Path | None:
    """The file of one of our modules; None for a name in one, or for another's."""
    path = ROOT.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def needed_at_import(*modules: str) -> set[str]:
    """Top names of what is imported, that is not ours, as these modules are."""
    found: set[str] = set()
    waiting, seen = list(modules), set(modules)
    while waiting:
        module = waiting.pop()
        top = module.partition(".")[0]
        if top not in OURS:
            found.add("google.protobuf" if module.startswith("google.protobuf") else top)
            continue
        parents = [module.rpartition(".")[0]] if "." in module else []
        source = source_of(module)
        named = [] if source is None else imported(ast.parse(source.read_text()), lazily=False)
        for each in (*parents, *named):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return found - set(sys.stdlib_module_names) - {"google"}


def test_the_sdk_imports_grpc_and_protobuf_alone() -> None:
    found = needed_at_import("quire.sdk.client", "quire.contract.sampling_params", "launch.llm")
    assert found == {"grpc", "google.protobuf"}
    assert distributions(None) == {"grpcio", "protobuf"}


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("launch.cli.main", "scheduler"),
        ("scheduler_svc.server", "scheduler"),
        ("router.server", "router"),
        ("worker_svc.service.server", "worker"),
        ("launch.cluster.supervisor", "scheduler"),
        ("launch.bench.serving", "bench"),
        ("simulator.simulation", "simulator"),
    ],
)
def test_an_extra_brings_what_its_service_imports(module: str, extra: str) -> None:
    assert source_of(module) is not None
    needed = {distribution_of(name) for name in needed_at_import(module)}
    assert needed - {"google.protobuf"} <= distributions(extra)


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("quire", "scheduler"),
        ("scheduler_svc", "scheduler"),
        ("router", "router"),
        ("worker_svc", "worker"),
        ("launch", "all"),
        ("simulator", "simulator"),
    ],
)
def test_a_package_imports_nowhere_what_its_extra_lacks(package: str, extra: str) -> None:
    names = {
        name.partition(".")[0]
        for path in (ROOT / package).rglob("*.py")
        if "v1" not in path.parts
        for name in imported(ast.parse(path.read_text()), lazily=True)
    }
    others = names - set(sys.stdlib_module_names) - {*OURS, "google"}
    others -= WHERE_WANTED.get(package, set())
    assert {distribution_of(name) for name in others} <= distributions(extra)


def test_only_the_worker_brings_torch() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {each for each in extras if "torch" in distributions(each)} == {"worker", "all"}


def test_what_is_looked_for_is_what_an_extra_brings() -> None:
    for extra, modules in MODULES.items():
        brought = distributions(extra) - distributions(None) - {"matplotlib"}  # --plot says so
        if extra == "simulator":
            brought -= distributions("router") - distributions("scheduler")
        assert {distribution_of(name) for name in modules} == brought, extra


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    require("quire serve", "router", "worker")
    find_spec = importlib.util.find_spec
    missing = {"torch"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name)
    )
    require("quire router", "router")
    with pytest.raises(ConfigError) as caught:
        require("quire serve", "router", "worker")
    assert caught.value.message == (
        "quire serve: needs packages that are not installed (torch): "
        "pip install 'quire-serve[worker]'"
    )
    missing |= {"starlette"}
    with pytest.raises(ConfigError) as caught:
        require("quire serve", "router", "worker")
    assert "(starlette, torch)" in caught.value.message
    assert caught.value.message.endswith("'quire-serve[router,worker]'")
    with pytest.raises(ConfigError, match=r"^LLM: .*'quire-serve\[all\]'$"):
        require("LLM", "router", "worker", bring="all")
