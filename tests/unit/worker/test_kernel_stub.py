"""worker_svc/_C.pyi is generated from csrc/ops.def: it must describe the built module."""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from worker_svc.ops import compiled

ROOT = Path(__file__).resolve().parents[3]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stub", ROOT / "csrc/bindings/stub.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stub_functions() -> dict[str, list[str]]:
    """The types of the arguments of each function of the stub."""
    tree = ast.parse(load_generator().stub())
    return {
        each.name: [ast.unparse(arg.annotation) for arg in each.args.posonlyargs if arg.annotation]
        for each in tree.body
        if isinstance(each, ast.FunctionDef)
    }


def built_functions() -> dict[str, list[str]]:
    """The same, as pybind11 writes the signatures of the built module."""
    functions = {}
    for name, value in vars(compiled._C).items():
        if not callable(value) or isinstance(value, type):
            continue
        signature = re.match(rf"{name}\((.*)\) -> ", value.__doc__)
        assert signature is not None, value.__doc__
        functions[name] = re.findall(r"arg\d+: (.*?)(?=, arg\d+: |$)", signature[1])
    return functions


def plain(built: str) -> str:
    """A type as the stub has it: pybind11 also takes what can become a number."""
    for pattern, name in (
        (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
        (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
        (r"collections\.abc\.", ""),
        (r'typing\.Annotated\[(.*), "FixedSize\(\d\)"\]', r"\1"),
        (r"torch\.", ""),
        (r"worker_svc\._C\.PeerMemory", "PeerMemory"),
        (r"worker_svc\._C\.AttentionPlan", "AttentionPlan | None"),  # None is a null pointer
    ):
        built = re.sub(pattern, name, built)
    return built


def test_the_stub_has_the_functions_of_the_module() -> None:
    stub, built = stub_functions(), built_functions()
    assert built.keys() - stub.keys() <= {"set_emulator_order", "emulated_card"}
    assert stub.keys() - built.keys() <= {
        *("follow_streams", "driver_problem", "launch_problem"),
        *("pin_host_memory", "unpin_host_memory"),
        *("peer_process", "peer_sum", "peer_failure"),
        *("paged_attention_v1", "masked_multihead_attention"),
        *("reshape_and_cache_v1", "gather_cached_kv_v1", "copy_blocks_v1", "swap_blocks_v1"),
    }
    common = stub.keys() & built.keys()
    assert {name: [plain(each) for each in built[name]] for name in common} == {
        name: stub[name] for name in common
    }


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ops\.def: type of x: must be .*, got 'float'"):
        load_generator().argument(" float x")
