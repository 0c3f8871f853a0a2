"""Nothing that is read can run: no pickles, no evaluated text, no code of a model directory.

All Python that ships is read, as syntax. What is allowed nevertheless is named below with its
reason, and a reason that nothing needs any more fails too.
"""

import ast
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.contract.errors import ModelLoadError, UnavailableError

NOWHERE = "127.0.0.1:1"
ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (
    "quire",
    "launch",
    "router",
    "scheduler_svc",
    "worker_svc",
    "simulator",
    "tools",
    "examples",
)

# Modules whose readers run what they read, or that serialise with one that does.
MODULES = {
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "jsonpickle",
    "marshal",
    "multiprocessing",
    "pickle",
    "ray",
    "shelve",
    "xmlrpc",
}
BUILTINS = {"eval", "exec", "compile", "__import__"}
# Functions of modules: `eval` alone is the built-in one, and torch's `model.eval()` another matter.
NAMES = {
    "asyncio.create_subprocess_shell",
    "os.popen",
    "os.system",
    "pandas.read_pickle",
    "runpy.run_module",
    "runpy.run_path",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "torch.load",
    "torch.utils.cpp_extension",
    "yaml.full_load",
    "yaml.load",
    "yaml.unsafe_load",
}
ALLOWED = {
    ("simulator/processes.py", "multiprocessing"): "the simulator's shards, over pipes to children",
    ("launch/launchers/ray_launcher.py", "ray"): "--launcher ray: places workers, no data",
    ("launch/launchers/ray_placement.py", "ray"): "--launcher ray: places workers, no data",
    ("launch/launchers/ray_worker.py", "ray"): "--launcher ray: places workers, no data",
    ("tools/architectures.py", "multiprocessing"): "tiny models, over pipes to children",
    (
        "tools/demo_corpus.py",
        "importlib.import_module of a variable",
    ): "modules of Python's standard library, by their names",
}


def findings(source: str) -> Iterator[str]:
    """Yield what a source does that could run what it reads."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [each.name.split(".")[0] for each in names]
                yield from (each for each in modules if each in MODULES)
                yield from (each.name for each in names if each.name in NAMES)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if module.split(".")[0] in MODULES:
                    yield module.split(".")[0]
                imported = [f"{module}.{each.name}" for each in names]
                yield from (each for each in imported if each in NAMES)
            case ast.Call():
                yield from _call_findings(node)


def _call_findings(call: ast.Call) -> Iterator[str]:
    keywords = {each.arg: each.value for each in call.keywords}
    match call.func:
        case ast.Name(id=name) if name in BUILTINS:
            yield name
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if f"{owner}.{name}" in NAMES:
            if name != "load" or not _is(keywords.get("weights_only"), True):
                yield f"{owner}.{name}"
        case ast.Attribute(value=ast.Name(id="importlib"), attr="import_module"):
            # Of a name that is written here, and is no text from elsewhere.
            if not (call.args and isinstance(call.args[0], ast.Constant)):
                yield "importlib.import_module of a variable"
        case ast.Attribute(attr="from_pretrained", value=owner) if _is_auto(owner):
            # transformers asks at a terminal, and runs the model's code if the answer is yes.
            if not _is(keywords.get("trust_remote_code"), False):
                yield "from_pretrained without trust_remote_code=False"
    if "allow_pickle" in keywords and not _is(keywords["allow_pickle"], False):
        yield "allow_pickle"
    if "shell" in keywords and not _is(keywords["shell"], False):
        yield "shell"
    if "trust_remote_code" in keywords and not _is(keywords["trust_remote_code"], False):
        yield "trust_remote_code"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_auto(owner: ast.expr) -> bool:
    """Return whether a class of transformers is one that can load code: its name begins so."""
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name.startswith("Auto")


def product_files() -> list[Path]:
    files = [path for top in PRODUCT for path in sorted((ROOT / top).rglob("*.py"))]
    return [path for path in files if "quire/v1" not in path.as_posix()]


def test_no_shipped_code_can_run_what_it_reads() -> None:
    files = product_files()
    assert len(files) > 100
    found = {
        (path.relative_to(ROOT).as_posix(), finding)
        for path in files
        for finding in findings(path.read_text())
    }
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "exceptions that nothing needs"


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "import pickle as innocent",
        "from pickle import loads",
        "import cloudpickle.fast",
        "from multiprocessing.connection import Client",
        "def f():\n    import marshal",
        "import shelve, json",
        "import dill",
        "import joblib",
        "import ray",
        "eval(text)",
        "exec(text)",
        "compile(text, 'f', 'exec')",
        "__import__(name)",
        "import importlib\nimportlib.import_module(name)",
        "os.system(command)",
        "from os import system",
        "os.popen(command)",
        "runpy.run_path(path)",
        "subprocess.run(command, shell=True)",
        "subprocess.run(command, shell=flag)",
        "await_ = asyncio.create_subprocess_shell(command)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "from torch import load",
        "numpy.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "from yaml import unsafe_load",
        "AutoModel.from_pretrained(directory)",
        "transformers.AutoTokenizer.from_pretrained(d, trust_remote_code=True)",
        "AutoConfig.from_pretrained(directory, trust_remote_code=flag)",
        "LlamaForCausalLM.from_pretrained(directory, trust_remote_code=True)",
        "from torch.utils import cpp_extension",
    ],
)
def test_a_planted_one_is_found(planted) -> None:
    assert list(findings(planted))


@pytest.mark.parametrize(
    "harmless",
    [
        "model.eval()",
        "re.compile(text)",
        "torch.load(path, weights_only=True)",
        "subprocess.run(command, shell=False)",
        "from quire.rayon import pickle_free",
        "from . import pickle",
        "AutoConfig.from_pretrained(directory, trust_remote_code=False)",
        "importlib.import_module('quire.v1')",
        "'import pickle'",
    ],
)
def test_what_only_looks_like_one_is_not(harmless) -> None:
    assert not list(findings(harmless))


EVIL = """
from pathlib import Path
Path({marker!r}).touch()
class Evil:
    pass
"""


@pytest.fixture
def booby_trap(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A model directory with code of its own, a user who answers yes, and what it would leave."""
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    directory, marker = tmp_path / "model", tmp_path / "it-ran"
    directory.mkdir()
    (directory / "evil.py").write_text(EVIL.format(marker=str(marker)))
    auto_map = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    }
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "evil",
        "auto_map": auto_map,
        "n_positions": 8,
    }
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer = {"tokenizer_class": "Evil", "auto_map": auto_map}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return directory, marker


def test_the_trap_is_one(booby_trap) -> None:
    """Left to itself, transformers does run it."""
    from transformers import AutoConfig

    directory, marker = booby_trap
    with contextlib.suppress(Exception):
        AutoConfig.from_pretrained(directory)
    assert marker.exists()


def test_a_models_own_code_is_not_run_though_a_user_at_the_terminal_would_agree(
    booby_trap,
) -> None:
    from quire import LLM
    from quire.tokenizer_files import load_backend
    from worker_svc.loading.hf_config import HfConfig
    from worker_svc.models.fallback_config import read_fallback

    directory, marker = booby_trap
    with pytest.raises(ModelLoadError):
        read_fallback(HfConfig.read(directory / "config.json"))
    with pytest.raises(ModelLoadError):
        load_backend(str(directory))
    with pytest.raises(UnavailableError), LLM(directory, target=NOWHERE) as llm:
        llm.chat([{"role": "user", "content": "hello"}], chat_template="hello")
    assert not marker.exists()
