"""What the commands that start services take: every option with its default, and from where."""

import inspect
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from launch.bench.offline_options import LatencyOptions, ThroughputOptions
from launch.bench.serve_options import ServeOptions
from launch.cli.main import app
from launch.cluster.config import ClusterConfig, embedded_model
from quire import LLM
from quire.contract.engine_options import DeviceOptions, EngineKeywords, EngineOptions
from quire.contract.errors import ConfigError
from quire.contract.options import options_of, types_of
from router.config import RouterConfig
from scheduler_svc.config import SchedulerConfig

# Name and flags of each option, and its default.
OPTIONS: dict[str, dict[str, object]] = {
    "serve": {
        "--admin-host": "127.0.0.1",
        "--admin-port": None,
        "--api-key": None,
        "--api-keys": None,
        "--block-size": 16,
        "--chat-template": None,
        "--connect-timeout-s": 300.0,
        "--control-port": 0,
        "--default-chat-template-kwargs": "",
        "--device": "auto",
        "--distributed-timeout-s": 30.0,
        "--download-dir": None,
        "--draft-model": "",
        "--shutdown-timeout-s": 1.0,
        "--dtype": "auto",
        "--enable-force-include-usage": False,
        "--enable-prefix-caching --no-enable-prefix-caching": True,
        "--enforce-eager": False,
        "--generation-config": "auto",
        "--gpu-memory-utilization": None,
        "--grace-time-s": 10.0,
        "--grpc-port": 50051,
        "--hang-timeout-s": 20.0,
        "--hf-overrides": "",
        "--host": "127.0.0.1",
        "--http-cors-origin": None,
        "--insecure": False,
        "--invariant": False,
        "--kv-cache-dtype": "auto",
        "--kv-cache-gib": None,
        "--launcher": "local",
        "--load-format": "safetensors",
        "--log-format": "auto",
        "--log-level": "warning",
        "--max-draft-tokens": 8,
        "--max-model-len": None,
        "--max-num-batched-tokens": 2048,
        "--max-num-seqs": 256,
        "--max-steps-in-flight": 2,
        "--max-waiting": 4096,
        "--max-waiting-tokens": 2**24,
        "--num-gpu-blocks-override": None,
        "--num-threads": None,
        "--otlp-endpoint": None,
        "--override-generation-config": "",
        "--peer-timeout-s": 1.7,
        "--port": 8000,
        "--preemption-mode": "auto",
        "--priority-ageing-s": 60.0,
        "--quantization": "none",
        "--ray-address": None,
        "--ray-cpus-per-worker": 1,
        "--reasoning-parser": "auto",
        "--record": "",
        "--record-mb": 256,
        "--record-tokens": False,
        "--recovery-timeout-s": 1200.0,
        "--return-tokens-as-token-ids": False,
        "--revision": None,
        "--root-path": "",
        "--seed": None,
        "--served-model-alias": None,
        "--served-model-name": "",
        "--speculation": "off",
        "--sse-keep-alive-interval": 10.0,
        "--ssl-ca-certs": None,
        "--ssl-cert-reqs": 0,
        "--ssl-certfile": None,
        "--ssl-keyfile": None,
        "--stalled-reader-timeout-s": 60.0,
        "--swap-space": None,
        "--tensor-parallel-size -tp": 1,
        "--tls-dir": None,
        "--tokenizer": None,
        "--tokenizer-revision": None,
        "--tool-call-parser": "auto",
        "--uds": None,
        "--worker": None,
        "MODEL": None,
    },
    "scheduler": {
        "--admin-host": "127.0.0.1",
        "--admin-port": None,
        "--block-size": 16,
        "--distributed-timeout-s": 30.0,
        "--draft-model": "",
        "--drain-timeout-s": 30.0,
        "--dtype": "auto",
        "--enable-prefix-caching --no-enable-prefix-caching": True,
        "--enforce-eager": False,
        "--gpu-memory-utilization": None,
        "--host": "127.0.0.1",
        "--insecure": False,
        "--invariant": False,
        "--kv-cache-dtype": "auto",
        "--kv-cache-gib": None,
        "--load-format": "safetensors",
        "--log-format": "auto",
        "--log-level": "info",
        "--max-draft-tokens": 8,
        "--max-model-len": None,
        "--max-num-batched-tokens": 2048,
        "--max-num-seqs": 256,
        "--max-steps-in-flight": 2,
        "--max-waiting": 4096,
        "--max-waiting-tokens": 2**24,
        "--move-blocks": "auto",
        "--num-gpu-blocks-override": None,
        "--otlp-endpoint": None,
        "--peer-timeout-s": 1.7,
        "--port": 50052,
        "--preemption-mode": "auto",
        "--priority-ageing-s": 60.0,
        "--quantization": "none",
        "--ready-fd": None,
        "--record": "",
        "--record-mb": 256,
        "--record-tokens": False,
        "--seed": None,
        "--served-model-alias": None,
        "--served-model-name": "",
        "--speculation": "off",
        "--swap-space": None,
        "--tensor-parallel-size -tp": None,
        "--tls-dir": None,
        "--worker": None,
        "MODEL": None,
    },
    "router": {
        "--admin-host": "127.0.0.1",
        "--admin-port": None,
        "--api-key": None,
        "--api-keys": None,
        "--chat-template": None,
        "--client-certificates --no-client-certificates": True,
        "--connect-timeout-s": 300.0,
        "--default-chat-template-kwargs": "",
        "--dns-interval-s": 5.0,
        "--drain-delay-s": 0.0,
        "--drain-timeout-s": 30.0,
        "--enable-force-include-usage": False,
        "--generation-config": "auto",
        "--grace-time-s": 10.0,
        "--host": "127.0.0.1",
        "--http-cors-origin": None,
        "--http-port": None,
        "--insecure": False,
        "--log-format": "auto",
        "--log-level": "info",
        "--otlp-endpoint": None,
        "--override-generation-config": "",
        "--peer-timeout-s": 1.7,
        "--port": 50051,
        "--ready-fd": None,
        "--reasoning-parser": "auto",
        "--recovery-timeout-s": 1200.0,
        "--return-tokens-as-token-ids": False,
        "--root-path": "",
        "--routing-policy": "prefix-aware",
        "--scheduler": None,
        "--scheduler-dns": None,
        "--sse-keep-alive-interval": 10.0,
        "--ssl-ca-certs": None,
        "--ssl-cert-reqs": 0,
        "--ssl-certfile": None,
        "--ssl-keyfile": None,
        "--stalled-reader-timeout-s": 60.0,
        "--tls-dir": None,
        "--tool-call-parser": "auto",
        "--uds": None,
        "MODEL": None,
    },
    "worker": {
        "--admin-host": "127.0.0.1",
        "--admin-port": None,
        "--advertise-host": None,
        "--announce-to": None,
        "--device": "auto",
        "--host": "127.0.0.1",
        "--insecure": False,
        "--log-format": "auto",
        "--log-level": "info",
        "--num-threads": None,
        "--otlp-endpoint": None,
        "--peer-timeout-s": 1.7,
        "--port": 50053,
        "--rank": None,
        "--rank-base": 0,
        "--ready-fd": None,
        "--tls-dir": None,
    },
}


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = group.commands
    return found


@pytest.mark.parametrize("command", OPTIONS)
def test_a_command_takes_these_options_with_these_defaults(command: str) -> None:
    found = {}
    for each in commands()[command].params:
        is_argument = each.param_type_name == "argument"
        flags = [each.metavar] if is_argument else [*each.opts, *each.secondary_opts]
        found[" ".join(flags)] = each.default
    assert found == OPTIONS[command]


def test_help_has_choices_bounds_units_variables_and_what_a_default_means() -> None:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["scheduler", "--help"])
    text = " ".join(result.stdout.split())
    for part in (
        "--kv-cache-dtype auto|fp8|int8",
        "--max-num-seqs INTEGER Most sequences running at once. In [1, 65536]. [default: 256]",
        "Memory for the KV cache of each worker. In GiB.",
        "wait for each other in any exchange. In [1, 3600] seconds.",
        "[default: (name of the directory)]",
        "--enable-prefix-caching / --no-enable-prefix-caching",
        "env var: QUIRE_TLS_DIR",
    ):
        assert part in text, part


def test_keywords_of_llm_are_the_options_with_their_types() -> None:
    keywords = inspect.get_annotations(EngineKeywords)
    groups = (EngineOptions, DeviceOptions)
    names = {name for group in groups for name in options_of(group)}
    # Its own seed is of prompts, one after the other.
    assert set(keywords) == (names | {"tensor_parallel_size"}) - {"seed"}
    fields = get_type_hints(ClusterConfig)
    assert keywords == {name: fields[name] for name in keywords}


def test_llm_documents_its_keywords_and_refuses_others() -> None:
    signature, text = inspect.signature(LLM), LLM.__init__.__doc__
    assert text is not None
    assert signature.parameters["max_num_batched_tokens"].default == 2048
    assert "max_num_batched_tokens: Most tokens computed in one step." in text
    with pytest.raises(TypeError, match="no_such_option"):
        LLM(target="127.0.0.1:1", no_such_option=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="admin_port"):
        LLM(target="127.0.0.1:1", admin_port=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("command", ["throughput", "latency"])
def test_what_measures_an_engine_takes_the_options_of_serve(command: str) -> None:
    def flags(of: Any) -> dict[str, tuple[str, ...]]:
        return {each.name: (*each.opts, *each.secondary_opts) for each in of.params}

    found, those_of_serve = flags(commands()["bench"].commands[command]), flags(commands()["serve"])
    for name in EngineKeywords.__annotations__:
        if (command, name) != ("latency", "enable_prefix_caching"):
            assert found[name] == those_of_serve[name]
    assert found["model"] == ("--model",)


def test_an_engine_is_given_what_is_not_its_default() -> None:
    options = ThroughputOptions(model="a", num_threads=1, dtype="float32", num_prompts=3)
    assert options.keywords == {"num_threads": 1, "dtype": "float32"}
    assert LatencyOptions().keywords == {"enable_prefix_caching": False}
    with pytest.raises(ConfigError, match=r"^max_num_seqs: must be in \[1, 65536\], got 0$"):
        LatencyOptions(max_num_seqs=0)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings with which services would have been started."""
    configs: list[Any] = []

    def serve(config: Any, *_: Any) -> Awaitable[int]:
        async def end() -> int:
            return 0

        configs.append(config)
        return end()

    for name in ("router.server", "scheduler_svc.server"):
        monkeypatch.setattr(f"{name}.serve", serve)
    for name in ("configure", "log_uncaught"):
        monkeypatch.setattr(f"quire.observe.log.{name}", lambda *_: None)
    return configs


def test_a_service_is_started_from_a_shell_with_flags_and_variables(served: list[Any]) -> None:
    flags = ["--max-num-seqs", "7", "--worker", "a:1", "--worker", "b:2", "--enforce-eager"]
    flags += ["--no-enable-prefix-caching", "--kv-cache-dtype", "int8", "--swap-space", "0.5"]
    variables = {"QUIRE_SCHEDULER_MAX_WAITING": "9", "QUIRE_SCHEDULER_MAX_NUM_SEQS": "8"}
    result = CliRunner().invoke(app, ["scheduler", *flags], env=variables)
    assert result.exit_code == 0, result.output
    assert served == [
        SchedulerConfig(
            model=str(embedded_model()),
            max_num_seqs=7,
            max_waiting=9,
            workers=("a:1", "b:2"),
            enforce_eager=True,
            enable_prefix_caching=False,
            kv_cache_dtype="int8",
            swap_space=0.5,
        )
    ]


def test_a_child_takes_its_parents_values_before_its_own(
    served: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("launch.cluster.process.die_with_parent", lambda _: None)
    monkeypatch.setattr("os.nice", lambda _: None)
    monkeypatch.setattr("quire.rpc.announce", lambda *_: None)
    monkeypatch.setattr("quire.rpc.report", lambda *_: None)
    values = {"schedulers": ["a:1"], "api_keys": str(tmp_path / "keys"), "port": 0}
    result = CliRunner().invoke(
        app,
        ["router", "--ready-fd", "99", "--port", "7"],
        input=json.dumps(values),
        env={"QUIRE_ROUTER_ROUTING_POLICY": "round-robin"},
    )
    assert result.exit_code == 0, result.output
    assert served == [
        RouterConfig(
            model=str(embedded_model()),
            schedulers=("a:1",),
            api_keys=tmp_path / "keys",
            port=0,
            routing_policy="round-robin",
        )
    ]


def test_every_option_has_help_and_a_limit_if_it_is_a_number() -> None:
    groups = (ClusterConfig, SchedulerConfig, RouterConfig)
    for group in (*groups, ServeOptions, ThroughputOptions, LatencyOptions):
        for name, each in options_of(group).items():
            assert each.help.endswith("."), name
            if types_of(group)[name] in (int, float):
                assert each.bounds is not None, name
