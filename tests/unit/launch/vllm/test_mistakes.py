"""Lines and keywords that people type: taken as vLLM means them, or one line says what is wrong."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from launch.cluster.config import ClusterConfig, embedded_model
from launch.engine_args import AsyncEngineArgs, EngineArgs
from launch.llm_cluster import keywords_of
from launch.vllm.arguments import split
from launch.vllm.keywords import TRANSLATED, translate
from launch.vllm.table import OF_SERVERS
from quire.contract.errors import ConfigError
from tests.unit.launch.vllm.test_options import OPTIONS, Serve, serve, served

__all__ = ["serve", "served"]

Served = list[ClusterConfig]
DEMO = str(embedded_model())
ORIGINS = ("http://a", "http://b")
SPECULATION = '{"method": "ngram"}'


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--enable-prefix-caching"], "enable_prefix_caching", True),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--no-enable-prefix-caching", "--enable-prefix-caching"], "enable_prefix_caching", True),
        (["--no-enforce-eager"], "enforce_eager", False),
        (["--enforce-eager", "--no-enforce-eager"], "enforce_eager", False),
        (["--no-enforce-eager", "--enforce-eager"], "enforce_eager", True),
        (["--no-return-tokens-as-token-ids"], "return_tokens_as_token_ids", False),
        (["--no-enable-force-include-usage"], "enable_force_include_usage", False),
        (
            ["--max-num-scheduled-tokens", "512", "--max-num-batched-tokens", "1024"],
            "max_num_batched_tokens",
            512,
        ),
        (
            ["--max-num-batched-tokens", "1024", "--max-num-scheduled-tokens", "512"],
            "max_num_batched_tokens",
            512,
        ),
        ([DEMO, "--api-key", "one", "--api-key", "two"], "api_key", ("one", "two")),
        ([DEMO, "--api-key", "one", "two"], "api_key", ("one", "two")),
        (["--api-key", "one"], "api_key", ("one",)),
        (["-O.level", "3"], "model", embedded_model()),
        (
            [
                *("--default-chat-template-kwargs", '{"a": {"b": 1}}'),
                *("--default-chat-template-kwargs.a.c", "2"),
            ],
            "default_chat_template_kwargs",
            '{"a": {"b": 1, "c": 2}}',
        ),
        (["--allowed-headers", "*"], "http_cors_origin", ()),
        (
            ["--limit-mm-per-prompt", '{"image": {"count": 0}, "video": null, "audio": 0}'],
            "http_cors_origin",
            (),
        ),
    ],
)
def test_a_line_is_taken(
    arguments: list[str], name: str, value: object, serve: Serve, served: Served
) -> None:
    result = serve(*arguments)
    assert result.exit_code == 0, result.output
    assert getattr(served[0], name) == value


@pytest.mark.parametrize(
    ("content", "arguments", "expected"),
    [
        ("max-num-seqs: 3", ["--port", "8001"], {"max_num_seqs": 3, "port": 8001}),
        ("max-num-seqs: 3", ["--max-num-seqs", "4"], {"max_num_seqs": 4}),
        ("enable-prefix-caching: false", [], {"enable_prefix_caching": False}),
        ("enable-prefix-caching: true", [], {"enable_prefix_caching": True}),
        ("enforce-eager: false", [], {"enforce_eager": False}),
        (
            "http-cors-origin: [http://a, http://b]",
            [],
            {"http_cors_origin": ("http://a", "http://b")},
        ),
        (f"model: {DEMO}\napi-key: [k1, -k2]", [], {"api_key": ("k1", "-k2")}),
        # What the line has takes the place of what the file has.
        ("api-key: k1", ["--api-key", "k2"], {"api_key": ("k2",)}),
        (
            "http-cors-origin: [http://a]",
            ["--http-cors-origin", "http://b"],
            {"http_cors_origin": ("http://b",)},
        ),
        (
            "override-generation-config: {top_k: 3}",
            ["--override-generation-config.top_p", "0.5"],
            {"override_generation_config": '{"top_p": 0.5}'},
        ),
        ("served-model-name: [a, b]", [], {"served_model_name": "a", "served_model_alias": ("b",)}),
    ],
)
def test_options_of_a_file_stand_anywhere(
    content: str,
    arguments: list[str],
    expected: dict[str, object],
    serve: Serve,
    served: Served,
    tmp_path: Path,
) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(content)
    for line in ([*arguments, "--config", str(path)], ["--config", str(path), *arguments]):
        result = serve(*line)
        assert result.exit_code == 0, result.output
        config = served.pop()
        assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize("given_first", [False, True])
def test_a_model_of_the_line_goes_before_that_of_a_file(
    given_first: bool, serve: Serve, served: Served, tmp_path: Path
) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(f"model: {tmp_path / 'none'}\nmax-num-seqs: 3")
    rest = ["--port", "8001", "--config", str(path)]
    model = str(embedded_model())
    assert serve(*([model, *rest] if given_first else [*rest, model])).exit_code == 0
    assert (served[0].model, served[0].max_num_seqs) == (embedded_model(), 3)


@pytest.mark.parametrize("line", [[""], ["--model", ""], ["--model=", "--port", "8001"]])
def test_an_empty_model_is_not_the_demo_model(
    line: list[str], serve: Serve, served: Served
) -> None:
    result = serve(*line)
    assert (result.exit_code, result.output) == (1, "error: model: must not be empty, got ''\n")
    assert not served


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("config: other.yaml", "config: must not name another file"),
        ("a: &a [*a]", "config: must have no value within itself, got "),
        ('enable-prefix-caching: "false"', "--enable-prefix-caching: must have no value, as a "),
        ("served-model-name: [-a, b]", "served-model-name: must not begin with -, got -a$"),
        ("revision: 2024-01-01", ""),  # a date, for YAML
    ],
)
def test_odd_files(content: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(content)
    if error:
        with pytest.raises(ConfigError, match=f"^{error}"):
            split(["--config", str(path)], TRANSLATED)
    else:
        assert split(["--config", str(path)], TRANSLATED)[1] == ["--revision=2024-01-01"]


@pytest.mark.parametrize(
    ("keywords", "field"),
    [
        ({"limit_mm_per_prompt": '{"image": {"count": 1}, "video": {"count": 1}}'}, None),
        ({"limit_mm_per_prompt": {"image": 1}}, None),
        ({"structured_outputs_config": "5"}, None),
        ({"structured_outputs_config": '"guidance"'}, None),
        ({"structured_outputs_config": {"disable_any_whitespace": True}}, None),
        ({"served_model_name": []}, None),
        ({"served_model_name": 5}, None),
        ({"max_model_len": "9" * 5000}, None),
        ({"kv_cache_memory_bytes": "9" * 400}, None),
        ({"speculative_config": "ngram"}, None),
    ],
)
def test_a_keyword_is_refused_by_its_name(keywords: dict[str, Any], field: str | None) -> None:
    name = field or next(iter(keywords))
    with pytest.raises(ConfigError, match=rf"^{name}[.\w]*: must ") as caught:
        translate(keywords)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (["--config", "a", "--config", "b"], "config: must be one file, got a and b"),
        (["--served-model-name"], "--served-model-name: must have a value, got none"),
        (["--dtype"], "--dtype: must have a value, got none"),
        (["--enable-lora=x"], "--enable-lora: must have no value, as a switch has none, got 'x'"),
        (["-a"], "-a: must be one of -asc, -ac, got -a"),
    ],
)
def test_a_mistake_is_told_in_the_grammar_of_all(line: list[str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split(line, TRANSLATED)
    assert caught.value.message == error


def test_a_size_that_is_none_is_told_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match=r"^kv_cache_memory_bytes: must be at least 1, got 0$"):
        translate({"kv_cache_memory_bytes": "0"})


def test_keys_of_an_object_need_an_object() -> None:
    for line in (
        ["--speculative-config", "ngram", "--speculative-config.num_speculative_tokens", "4"],
        ["-cc.x", "1", "--compilation-config", "3"],
    ):
        with pytest.raises(ConfigError, match=r"^(speculative|compilation)-config: must be "):
            split(line, TRANSLATED)


def test_items_of_a_list_may_stand_apart() -> None:
    line = ["--compilation-config.sizes+", "1", "--compilation-config.sizes+", "2"]
    assert split(line, TRANSLATED)[0] == {"compilation-config": '{"sizes": [1, 2]}'}


def test_none_asks_for_nothing() -> None:
    names = ("dtype", "max_num_seqs", "tensor_parallel_size", "quantization", "spec_method", "seed")
    assert translate(dict.fromkeys(names)) == ({}, [])
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    assert keywords_of(vars(parser.parse_args([]))) == {}


def test_none_is_no_value_of_an_option() -> None:
    for name in ("max_num_seqs", "dtype", "enforce_eager"):
        with pytest.raises(ConfigError, match=rf"^{name}: must be "):
            ClusterConfig(model=embedded_model(), **{name: None})
    with pytest.raises(ConfigError, match=r"^served_model_alias: must be several, got 'foo'"):
        ClusterConfig(model=embedded_model(), served_model_alias="foo")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["otlp_traces_endpoint", "shutdown_timeout", "override_generation_config", "generation_config"],
)
def test_an_option_of_a_server_is_no_keyword_of_an_engine(name: str) -> None:
    with pytest.raises(TypeError, match=f"^LLM: {name} is an option of `quire serve`"):
        keywords_of({name: "a" if name != "shutdown_timeout" else 1})
    with pytest.raises(TypeError, match=r"^LLM: nonsense is no keyword"):
        keywords_of({"nonsense": 1})
    assert keywords_of({"generation_config": "vllm"}) == {}


def test_arguments_may_be_set_later() -> None:
    args = EngineArgs(model="m")
    args.max_num_seqs = 8
    assert args.given == {"model": "m", "max_num_seqs": 8}


def test_a_parser_takes_counts_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    line = ["--max-num-batched-tokens", "4k", "--max-model-len", "8K", "--max-num-seqs", "16"]
    args = EngineArgs.from_cli_args(parser.parse_args(line))
    assert args.create_engine_configs()[3].max_num_batched_tokens == 4000
    assert args.given["max_model_len"] == 8192
    with pytest.raises(SystemExit):
        parser.parse_args(["--max-num-seqs", "many"])
    assert "must be an integer, such as 8192, 8k or 8K, got 'many'" in capsys.readouterr().err


def test_a_parser_has_the_options_of_vllms_engines() -> None:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    line = (
        "--trust-remote-code --runner generate -q awq --revision main --limit-mm-per-prompt "
        '{"image":0} --compilation-config 3 --max_num_seqs 4 --max-model-len auto -tp 2 '
        '--hf-overrides {"rope_theta":5} --no-enable_prefix_caching'
    )
    given = AsyncEngineArgs.from_cli_args(parser.parse_args(line.split())).given
    assert given.pop("hf_overrides") == {"rope_theta": 5} and given.pop("revision") == "main"
    assert keywords_of(given) == {
        "quantization": "stored",
        "max_num_seqs": 4,
        "tensor_parallel_size": 2,
        "enable_prefix_caching": False,
    }


def test_a_parser_leaves_a_servers_options_to_programs() -> None:
    assert {*OPTIONS} >= OF_SERVERS - {"disable-log-requests", "engine-use-ray"}
    parser = argparse.ArgumentParser()
    for name in sorted(OF_SERVERS - {"engine-use-ray", "disable-log-requests"}):
        parser.add_argument(f"--{name}")
    AsyncEngineArgs.add_cli_args(parser)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "smollm2", "no/such/path", DEMO, "k" * 256])
def test_a_model_among_the_keys_is_not_taken_for_one(
    model: str, serve: Serve, served: Served
) -> None:
    message = "model: must be given, before --api-key, where there are several keys, got none"
    for line in (["--api-key", "secret", model], ["--api-key", model, "--api-key", "secret"]):
        assert serve(*line).output == f"error: {message}\n"
    assert not served
    assert serve(DEMO, "--api-key", "secret", model).exit_code == 0


def test_a_model_of_a_name_that_no_file_can_have_is_refused_in_one_line(serve: Serve) -> None:
    result = serve("k" * 300)
    assert result.exit_code == 1
    assert result.output.startswith("error: model: ") and result.output.count("\n") == 1


def test_a_value_that_is_attached_to_a_short_option_may_have_a_dot() -> None:
    line = ["-iin.jsonl", "-oout.jsonl", "-iin", "-cc.level", "3", "-sc.method", "ngram"]
    given, left = split(line, ["speculative-config"])
    assert left == ["-iin.jsonl", "-oout.jsonl", "-iin"]
    assert given == {"compilation-config": '{"level": 3}', "speculative-config": SPECULATION}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("ALLOWED_ORIGINS", '["http://a", "http://b"]', {"http_cors_origin": ORIGINS}),
        ("ALLOWED_ORIGINS", ' ["http://a",\n"http://b"] ', {"http_cors_origin": ORIGINS}),
        ("API_KEY", "a", {"api_key": ("a",)}),
        ("SERVED_MODEL_NAME", "a b", {"served_model_name": "a", "served_model_alias": ("b",)}),
    ],
)
def test_a_list_of_a_variable_is_json_or_words(
    name: str,
    text: str,
    expected: dict[str, object],
    serve: Serve,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"QUIRE_SERVE_{name}", text)
    result = serve()
    assert result.exit_code == 0, result.output
    assert {each: getattr(served[0], each) for each in expected} == expected
