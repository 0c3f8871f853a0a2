"""What would stop a cluster is found before anything starts."""

import codecs
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.cluster.config import ClusterConfig, embedded_model
from launch.preflight import check
from quire import tokenizer_files
from quire.contract.errors import ConfigError
from quire.observe import otel
from tests.unit.launch.model_makers import write_model


def config(**options: Any) -> ClusterConfig:
    ports = {"port": None, "grpc_port": 0}
    return ClusterConfig(**{"model": embedded_model(), **ports, **options})


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", ["port", "grpc_port", "control_port", "admin_port"])
def test_a_port_in_use_is_refused_by_the_name_of_its_option(name: str, taken: int) -> None:
    flag = name.replace("_", "-")
    message = (
        f"{name}: must be free, got {taken}, where another process listens; "
        f"`--{flag} 0` takes a free one"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check(config(**{name: taken}))


def test_a_port_of_an_admin_page_that_follows_is_checked_too(taken: int) -> None:
    with pytest.raises(ConfigError, match=rf"^admin_port of worker 0: must be free, got {taken},"):
        check(config(admin_port=taken - 2))


def test_equal_ports_are_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    message = f"^grpc_port: must be another than port, got {port} for both$"
    with pytest.raises(ConfigError, match=message):
        check(config(port=port, grpc_port=port))
    # A socket of another kind has no port.
    check(config(port=port, grpc_port=port, uds=str(tmp_path / "socket")))


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost", "LOCALHOST", "127.0.0.1"])
def test_every_spelling_of_this_machine_is_taken(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^port: must be free, got {port},"):
            check(config(host=host, port=port))
    check(config(host=host, port=port))


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^host: must be an address of this machine, got "):
        check(config(host="192.0.2.1", insecure=True, port=8000))
    with pytest.raises(ConfigError, match=r"^host: must be an address of this machine, got "):
        check(config(host="no.such.host.invalid", insecure=True, port=8000))


def refused(message: str, **options: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as caught:
        check(config(**options))
    assert "\n" not in caught.value.message


def test_a_chat_template_that_no_router_takes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    refused(f"chat_template: {path} cannot be read: ", chat_template=path)
    path.write_bytes(b"\xff")
    refused(f"chat_template: {path} must be UTF-8, got", chat_template=path)
    path.write_text("{% if %}")
    refused(f"chat_template: {path} must be a Jinja template, got line 1", chat_template=path)
    path.write_text("{{ messages }}")
    check(config(chat_template=path))


def test_defaults_of_parameters_that_no_router_takes_are_refused(tmp_path: Path) -> None:
    name = tmp_path / "generation_config.json"
    refused(f"generation_config: {name} must be a JSON object", generation_config=str(tmp_path))
    name.write_text('{"temperature": "hot"}')
    wrong = "temperature must be a number, got 'hot'"
    refused(f"generation_config: {name}: {wrong}", generation_config=str(tmp_path))
    field = "override_generation_config"
    refused(f"{field}: {wrong}", **{field: '{"temperature": "hot"}'})
    refused(f"{field}: temperature: must be in", **{field: '{"temperature": -1}'})
    refused(f"{field}: top_k must be an integer", **{field: '{"top_k": 2.5}'})
    check(config(override_generation_config='{"temperature": 0.5}'))


def test_files_of_https_and_of_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("no PEM, and no key")
    refused("ssl_certfile: must be a certificate in PEM, with its key", ssl_certfile=path)
    refused(f"{path}, line 1: ", api_keys=path)
    path.write_text("")
    check(config(api_keys=path))


def test_a_place_where_no_socket_can_be_is_refused(tmp_path: Path) -> None:
    missing, taken = tmp_path / "none" / "x.sock", tmp_path / "file"
    taken.write_text("kept")
    for path, why in (
        (missing, "No such file or directory"),
        (taken, "there is a file that is no socket"),
        (tmp_path / ("a" * 200), "AF_UNIX path too long"),
    ):
        refused(f"uds: cannot listen on {path}: {why}", uds=str(path))
    assert taken.read_text() == "kept"
    path = tmp_path / "x.sock"
    check(config(uds=str(path)))
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        refused(f"uds: cannot listen on {path}: another process listens there", uds=str(path))
    check(config(uds=str(path)))  # whose process has gone


def test_a_place_of_records_is_made_or_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "a"):
        refused(f"record: must be a directory that can be written, got {path}: ", record=str(path))
    check(config(record=str(tmp_path / "made")))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    refused("record: must be a directory that its owner alone", record=str(tmp_path / "open"))


@pytest.mark.parametrize("wrong", ["model", "isa", "endpoint"])
def test_nothing_is_made_or_removed_before_all_else_is_right(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))  # and listens no longer
    options: dict[str, Any] = {"uds": str(place), "record": str(tmp_path / "made")}
    if wrong == "model":
        options["model"] = write_model(tmp_path / "model", vocab_size=None, num_attention_heads=0)
    elif wrong == "isa":
        monkeypatch.setenv("QUIRE_ISA", "foo")
    else:
        options["otlp_endpoint"] = "x"
    with pytest.raises(ConfigError):
        check(config(**options))
    assert place.exists() and not (tmp_path / "made").exists()
    options = {"uds": options["uds"], "record": options["record"]}
    monkeypatch.delenv("QUIRE_ISA", raising=False)
    check(config(**options))
    assert not place.exists() and (tmp_path / "made").exists()


@pytest.mark.parametrize("endpoint", ["x", "collector:4317", "http://", "http://a:b", "grpc://a"])
def test_an_endpoint_of_traces_that_is_no_url_is_refused(endpoint: str) -> None:
    message = "otlp_endpoint: must be http://HOST:PORT or https://HOST:PORT, got "
    refused(f"{message}{endpoint!r}", otlp_endpoint=endpoint)


def test_traces_without_opentelemetry_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check(config(otlp_endpoint="http://a:4317"))
    monkeypatch.setattr(otel, "_EXPORTER", "no-such-package")
    refused(otel.MISSING, otlp_endpoint="http://a:4317")


@pytest.mark.parametrize("device", ["gpu", "CPU", "cpu:0", "cuda:", "cuda:a", "cuda:\u0663"])
def test_a_device_of_another_name_is_refused(device: str) -> None:
    refused(f"device: must be auto, cpu, cuda or cuda:N, got {device!r}", device=device)


def test_checks_load_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from launch import preflight; "
        "from launch.cluster.config import ClusterConfig, embedded_model; "
        "preflight.check(ClusterConfig(model=embedded_model(), port=0, grpc_port=0, device='cpu',"
        f"uds={str(tmp_path / 'x')!r}, record={str(tmp_path / 'y')!r}, otlp_endpoint='http://a:1'));"
        "sys.exit(' '.join({'torch', 'transformers', 'grpc'} & sys.modules.keys()) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_tokenizer_that_is_cut_off_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model")
    path = model / "tokenizer.json"
    whole = path.read_bytes()
    for at_once in (0, len(whole)):  # its end is looked at, or all of it
        monkeypatch.setattr(tokenizer_files, "_READ_AT_ONCE_BYTES", at_once)
        for content in (b"", whole[: len(whole) // 2], b"version https://git-lfs", b"[]"):
            path.write_bytes(content)
            refused(f"{path}: must be a whole JSON object, got another; fetch it", model=model)
        path.write_bytes(codecs.BOM_UTF8 + whole)
        check(config(model=model))


def test_an_instruction_set_that_this_machine_has_not_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("scalar", ""):
        monkeypatch.setenv("QUIRE_ISA", name)
        check(config())
    monkeypatch.setenv("QUIRE_ISA", "foo")
    with pytest.raises(ConfigError, match=r"^QUIRE_ISA: must be one of .*scalar on .* got 'foo'$"):
        check(config())
