"""The cluster that an `LLM` without a target starts for itself, and how both end unasked."""

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from launch import llm_requests
from launch.cluster.config import ClusterConfig, embedded_model
from launch.model_source import ModelSource
from launch.vllm.keywords import translate
from quire.contract.engine_options import EngineKeywords
from quire.contract.errors import ConfigError
from quire.contract.options import options_of
from quire.gguf_file import is_model
from quire.sdk.client import Client

if TYPE_CHECKING:
    from launch.cluster.thread import ClusterThread
    from launch.engine import LLMEngine

_NO_DEFAULTS = ("generation_config", "vllm")


def source_of(
    revision: str | None,
    download_dir: str | Path | None,
    tokenizer: str | Path | None,
    tokenizer_revision: str | None,
    hf_overrides: Mapping[str, Any] | None,
) -> ModelSource:
    """Return where a model's files come from, by the keywords of `LLM`.

    Raises:
        ConfigError: `hf_overrides` is no mapping.
    """
    if hf_overrides is not None and not isinstance(hf_overrides, Mapping):
        raise ConfigError(f"hf_overrides: must be a mapping, got {hf_overrides!r}")
    return ModelSource(
        revision=revision,
        download_dir=None if download_dir is None else Path(download_dir),
        tokenizer=None if tokenizer is None else str(tokenizer),
        tokenizer_revision=tokenizer_revision,
        hf_overrides=json.dumps(dict(hf_overrides)) if hf_overrides else "",
    )


def keywords_of(given: Mapping[str, Any]) -> EngineKeywords:
    """Return keywords of `LLM`, which may be vLLM's, as options of an engine.

    Raises:
        TypeError: one is no option and none of vLLM's, or is a server's.
        ConfigError: one asks for what is not done here.
    """
    # The parameters of a request are what they say: no file of the model's fills them in.
    asked = {key: value for key, value in given.items() if (key, value) != _NO_DEFAULTS}
    found = translate(asked)[0]
    strange = found.keys() - {*EngineKeywords.__annotations__, "launcher"}
    for name in asked if strange else ():
        with suppress(ConfigError):  # of options that need others beside them
            meant = translate({name: asked[name]})[0].keys() & strange
            if meant & options_of(ClusterConfig).keys():
                raise TypeError(f"LLM: {name} is an option of `quire serve`, not of LLM")
            if meant:
                raise TypeError(f"LLM: {name} is no keyword")
    return cast("EngineKeywords", found)


def config_of(
    model: str | Path | None,
    source: ModelSource,
    tls_dir: str | Path | None,
    options: EngineKeywords,
) -> ClusterConfig:
    """Return what a cluster of one process's own is asked for: no HTTP, and ports that are free.

    Args:
        model: directory, GGUF file or name; None takes the embedded demo model.
        source: where its files come from.
        tls_dir: certificates of all roles; None for none.
        options: of the engine.

    Raises:
        ConfigError: the model is not found, or an option is out of bounds.
    """
    if model is not None and not is_model(Path(model)):
        # A directory of the cache has the name of a commit.
        options.setdefault("served_model_name", str(model))
    return ClusterConfig(
        model=source.path_of(embedded_model() if model is None else model),
        port=None,
        grpc_port=0,
        tls_dir=None if tls_dir is None else str(tls_dir),
        **options,
    )


def start_cluster(config: ClusterConfig) -> "ClusterThread":
    """Start a cluster in a thread of this process, and return when it takes requests.

    Raises:
        ConfigError: it cannot start; one line that says why.
        UnavailableError: a service died without a word.
    """
    from launch import preflight
    from launch.cluster.thread import ClusterThread

    preflight.check(config)
    return ClusterThread(config)


def close_quietly(
    engines: "Iterable[LLMEngine]", client: Client, cluster: "ClusterThread | None"
) -> None:
    """Disconnect, and stop a cluster that nobody uses any more; say nothing of what fails."""
    if not threading.main_thread().is_alive():  # and not since the object has gone
        llm_requests.exiting.set()
    for engine in list(engines):
        with suppress(Exception):
            engine.end_requests()
    with suppress(Exception):
        client.close()
    if cluster is not None:
        with suppress(Exception):
            cluster.stop()
