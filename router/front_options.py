"""Options of a router that `quire serve` has, too: how it answers its clients."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.contract.callers import check_key
from quire.contract.errors import ConfigError
from quire.contract.options import Bounds, Options, option
from router.chat.parsers.formats import AUTO, REASONING_PARSERS, TOOL_CALL_PARSERS, choose_format

# Whether clients over HTTPS must show a certificate, as Python's ssl numbers it.
_CERT_REQS = Bounds(0, 2)


@dataclass(frozen=True, kw_only=True)
class HttpOptions(Options):
    """Where and how the HTTP APIs are served; names are vLLM's."""

    PANEL = "HTTP"

    uds: str | None = option(
        None,
        "Listen for HTTP on a Unix domain socket of this path instead of a port.",
        metavar="PATH",
        shown_default="none",
    )
    root_path: str = option(
        "",
        "Path under which a proxy serves the HTTP APIs, where it does not take it off.",
        metavar="/PATH",
        shown_default="none",
    )
    http_cors_origin: tuple[str, ...] = option(
        (),
        "An origin whose pages browsers may let read answers over HTTP; '*' for all. Repeat.",
        metavar="ORIGIN",
        shown_default="none: no CORS",
    )
    sse_keep_alive_interval: float = option(
        10.0,
        "How long a stream of events may be silent before a comment is sent; 0 sends none.",
        unit="seconds",
        bounds=Bounds(0, 3600),
    )
    ssl_certfile: Path | None = option(
        None,
        "Serve HTTPS with the certificates of this file; gRPC goes by --tls-dir. Clients of HTTPS "
        "need none then, unless --ssl-cert-reqs says so.",
        metavar="FILE",
        shown_default="those of --tls-dir",
    )
    ssl_keyfile: Path | None = option(
        None,
        "The private key of --ssl-certfile.",
        metavar="FILE",
        shown_default="in the same file",
    )
    ssl_ca_certs: Path | None = option(
        None,
        "Authorities whose certificates clients may show over HTTPS.",
        metavar="FILE",
        shown_default="none",
    )
    ssl_cert_reqs: int = option(
        0,
        "Whether clients over HTTPS show one: 0 no, 1 if they have one, 2 they must.",
        bounds=_CERT_REQS,
    )
    api_keys: Path | None = option(
        None,
        "Take calls only with a key of this file, which `quire keys` makes.",
        envvar="QUIRE_API_KEYS",
        metavar="FILE",
        shown_default="calls need no key",
    )
    api_key: tuple[str, ...] = option(
        (),
        "Take calls only with this key, or one of several; repeat. Others on this machine may see "
        "it here; not in the environment.",
        envvar="VLLM_API_KEY",
        metavar="KEY",
        shown_default="calls need no key",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(f"{name}: must be a file that exists, got {path}")
            if path is not None and self.ssl_certfile is None:
                raise ConfigError(f"ssl_certfile: must be given with {name}, got none")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError("ssl_ca_certs: must be given with ssl_cert_reqs, got none")
        if self.ssl_ca_certs is not None and not self.ssl_cert_reqs:
            raise ConfigError("ssl_cert_reqs: must be 1 or 2 with ssl_ca_certs, got 0")
        if self.root_path.strip("/") and not self.root_path.startswith("/"):
            raise ConfigError(f"root_path: must begin with /, got {self.root_path}")
        if not all(self.api_key):
            raise ConfigError("api_key: must not be empty, got ''")
        for key in self.api_key:
            check_key(key)


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(Options):
    """What requests and answers look like."""

    PANEL = "Requests and answers"

    chat_template: Path | None = option(
        None,
        "A Jinja file that takes the place of the model's chat template.",
        metavar="FILE",
        shown_default="the model's",
    )
    default_chat_template_kwargs: str = option(
        "",
        "Variables for the chat template, as a JSON object; those of a request count more.",
        metavar="JSON",
        shown_default="none",
    )
    generation_config: str = option(
        "auto",
        "Where the defaults of sampling parameters come from: 'auto' the model's "
        "generation_config.json, 'vllm' nowhere; or a directory that has such a file.",
        metavar="auto|vllm|DIRECTORY",
    )
    override_generation_config: str = option(
        "",
        "Defaults of sampling parameters that take the place of those, as a JSON object.",
        metavar="JSON",
        shown_default="none",
    )
    tool_call_parser: str = option(
        AUTO,
        "How the model writes calls of tools: 'auto' tells by its chat template, 'none' leaves "
        f"them in the text; {', '.join(TOOL_CALL_PARSERS)}.",
        metavar="NAME",
    )
    reasoning_parser: str = option(
        AUTO,
        "How the model writes what it thinks: 'auto' tells by its chat template, 'none' leaves it "
        f"in the text; {', '.join(REASONING_PARSERS)}.",
        metavar="NAME",
    )
    enable_force_include_usage: bool = option(
        False, "End every stream over HTTP with the numbers of tokens, asked for or not."
    )
    return_tokens_as_token_ids: bool = option(
        False, "Write tokens in log-probabilities over HTTP as token_id:N."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        choose_format(self.tool_call_parser, self.reasoning_parser, ())
        _ = self.template_kwargs
        _ = self.generation_overrides

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables for the chat template.

        Raises:
            ConfigError: they are no JSON object.
        """
        text = self.default_chat_template_kwargs
        return json_object("default_chat_template_kwargs", text) if text else {}

    @property
    def generation_overrides(self) -> dict[str, Any]:
        """Defaults of sampling parameters beside those of a file.

        Raises:
            ConfigError: they are no JSON object.
        """
        text = self.override_generation_config
        return json_object("override_generation_config", text) if text else {}


@dataclass(frozen=True, kw_only=True)
class PatienceOptions(Options):
    """How long a router waits for cells and for clients."""

    PANEL = "Waiting"

    connect_timeout_s: float = option(
        300.0,
        "How long a new request waits for a cell of its model.",
        unit="seconds",
        bounds=Bounds(0, 86_400),
    )
    recovery_timeout_s: float = option(
        1200.0,
        "How long a request that has begun waits for a cell that may continue it.",
        unit="seconds",
        bounds=Bounds(0, 86_400),
    )
    stalled_reader_timeout_s: float = option(
        60.0,
        "How long a client may leave its stream unread before the stream is ended. Its request is "
        "paused long before.",
        unit="seconds",
        bounds=Bounds(0.1, 86_400),
    )
    grace_time_s: float = option(
        10.0,
        "How long a request whose stream broke runs on for its client to come back, if the client "
        "asked for that; 0 ends it at once.",
        unit="seconds",
        bounds=Bounds(0, 3600),
    )


@dataclass(frozen=True, kw_only=True)
class FrontOptions(HttpOptions, AnswerOptions, PatienceOptions):
    """All of them.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """


def json_object(name: str, text: str) -> dict[str, Any]:
    """Return the JSON object that an option holds.

    Raises:
        ConfigError: it is none; names the option.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: must be a JSON object, got {text[:64]!r}")
    return found
