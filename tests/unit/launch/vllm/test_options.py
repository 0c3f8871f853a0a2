"""Every option of `vllm serve` (0.33): `quire serve` takes it, or says in one line what to use."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from launch.cli.main import app
from launch.cluster.config import ClusterConfig, embedded_model

# Name: kind of its value, other spellings; as `vllm serve --help=all` has them.
OPTIONS: dict[str, list[str]] = json.loads(Path(__file__).with_name("options.json").read_text())
SAMPLES = {
    "int": "1",
    "float": "0.5",
    "text": "a",
    "json": '{"a": 1}',
    "list": "a",
}
# Options that take few values: one that vLLM's users type.
TYPED = {
    "api-key": "secret",
    "chat-template": None,
    "config": None,
    "distributed-executor-backend": "mp",
    "dtype": "half",
    "hf-overrides": '{"rope_theta": 5000.0}',
    "kv-cache-dtype": "auto",
    "kv-cache-memory-bytes": "1G",
    "load-format": "auto",
    "max-model-len": "1k",  # as long as the demo model's
    "max-num-batched-tokens": "4K",
    "model": None,
    "otlp-traces-endpoint": "http://127.0.0.1:4317",
    "port": "8001",
    "quantization": "awq",
    "reasoning-parser": "deepseek_r1",
    "root-path": "/llm",
    "runner": "generate",
    "scheduling-policy": "priority",
    "spec-method": "ngram",
    "speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}',
    "structured-outputs-config": '{"backend": "auto"}',
    "tokenizer": None,
    "tokenizer-mode": "auto",
    "tool-call-parser": "hermes",
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[ClusterConfig]]:
    """What clusters would have been started with."""
    configs: list[ClusterConfig] = []

    async def serve(config: ClusterConfig) -> None:
        configs.append(config)

    monkeypatch.setattr("launch.cli.serve._serve", serve)
    # The demo model does not have all that options ask for.
    monkeypatch.setattr("launch.preflight.check_model", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("configure", "log_uncaught"):
        monkeypatch.setattr(f"quire.observe.log.{name}", lambda *_: None)
    return configs


COMMAND: Any = get_command(app)


@dataclass(frozen=True)
class Result:
    """What came of a command: status, and all that it printed."""

    exit_code: int
    output: str


Serve = Callable[..., Result]


@pytest.fixture
def serve(capsys: pytest.CaptureFixture[str], served: list[ClusterConfig]) -> Serve:
    """Runs `quire serve`."""

    def run(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            COMMAND.main(["serve", *arguments], prog_name="quire")
        return Result(int(ended.value.code or 0), "".join(capsys.readouterr()))

    return run


def check_lines(result: Result) -> None:
    """An error is one line, a note too."""
    lines = result.output.splitlines()
    assert all(line.startswith(("error: ", "note: ")) for line in lines), result.output
    assert sum(line.startswith("error: ") for line in lines) == (result.exit_code != 0)
    assert "o such option" not in result.output, result.output


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_taken_or_refused_by_name(
    name: str, serve: Serve, served: list[ClusterConfig], tmp_path: Path
) -> None:
    kind, *short = OPTIONS[name]
    value = TYPED.get(name, SAMPLES.get(kind))
    if name in TYPED and value is None:
        value = str(_made(name, tmp_path))
    for flag in (f"--{name}", f"--{name.replace('-', '_')}", *short):
        result = serve(flag) if value is None else serve(flag, value)
        check_lines(result)
        if result.exit_code:
            word = "speculative_config" if name.startswith("spec-") else name.replace("-", "_")
            # Its own name, or that of what it needs beside it.
            assert word in result.output.replace("-", "_")
            assert not served
        else:
            assert len(served) == 1
        served.clear()


def _made(name: str, directory: Path) -> Path:
    """Return what an option that names a file can name."""
    if name in ("model", "tokenizer"):
        return embedded_model()
    path = directory / name
    path.write_text("max-num-seqs: 3\n" if name == "config" else "{{ messages }}")
    return path


@pytest.mark.parametrize("name", sorted(set(TYPED) - {"spec-method"}))
def test_what_people_type_is_taken(
    name: str, serve: Serve, served: list[ClusterConfig], tmp_path: Path
) -> None:
    value = TYPED[name] if TYPED[name] is not None else str(_made(name, tmp_path))
    result = serve(f"--{name}", value)
    assert result.exit_code == 0, result.output
    assert len(served) == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"DTYPE": "half", "MAX_MODEL_LEN": "1k"}, {"dtype": "float16", "max_model_len": 1000}),
        (
            {"QUANTIZATION": "awq", "API_KEY": "a b"},
            {"quantization": "stored", "api_key": ("a", "b")},
        ),
        ({"MAX_MODEL_LEN": "auto", "TRUST_REMOTE_CODE": "1"}, {"max_model_len": None}),
        ({"ENABLE_PREFIX_CACHING": "0", "DTYPE": ""}, {"enable_prefix_caching": False}),
        ({"MAX_NUM_SEQS": "9", "MAX_NUM_BATCHED_TOKENS": "4K"}, {"max_num_seqs": 3}),
    ],
)
def test_variables_have_what_options_may_have(
    variables: dict[str, str],
    expected: dict[str, object],
    serve: Serve,
    served: list[ClusterConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"QUIRE_SERVE_{name}", value)
    result = serve(str(embedded_model()), "--max-num-seqs", "3")
    assert result.exit_code == 0, result.output
    assert "no option reads" not in result.output
    assert {name: getattr(served[0], name) for name in expected} == expected


@pytest.mark.parametrize(
    "command", [("run-batch",), ("size",), ("bench", "latency"), ("bench", "throughput")]
)
def test_commands_with_an_engine_take_vllms_options(
    command: tuple[str, ...],
) -> None:
    found = COMMAND
    for name in command:
        found = found.commands[name]
    line = "--trust-remote-code -q awq --dtype half"
    if command != ("size",):
        line += " --max_num_seqs 7 --max-model-len 1k"
    if command == ("run-batch",):
        line += " -i a -o b --model m"
    context = found.make_context(command[-1], line.split())
    expected = {"quantization": "stored", "dtype": "float16"}
    if command != ("size",):
        expected |= {"max_num_seqs": "7", "max_model_len": "1000"}
    assert {name: context.params[name] for name in expected} == expected
    if command == ("run-batch",):
        assert context.params["model"] == "m"
