"""vLLM's options as Quire's: the same meaning, or a refusal by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from launch.vllm.table import ABSENT, ALWAYS, NO_EFFECT, ONE_WAY
from launch.vllm.values import count, from_json, plain
from quire.contract.engine_options import GIB, SpeculationMode
from quire.contract.errors import ConfigError

Keywords = dict[str, Any]
_Translation = Callable[[str, Any], Keywords]

_DTYPES = {"half": "float16", "float": "float32"}
_DRAFTS = {
    "spec-method": "method",
    "spec-model": "model",
    "spec-tokens": "num_speculative_tokens",
}
_STORED = ("awq", "gptq", "compressed-tensors", "awq_marlin", "gptq_marlin", "fp8")


def translate(given: Mapping[str, Any]) -> tuple[Keywords, list[str]]:
    """Return options that may be vLLM's as Quire's, and the names of those without an effect.

    None asks for nothing, as in vLLM, where it is the default of many.

    Args:
        given: values by name, as on a command line or as Python has them.

    Raises:
        ConfigError: one asks for something that Quire does not do.
    """
    found: Keywords = {}
    idle = []
    asked = {name: value for name, value in given.items() if value is not None}
    for name, value in _with_speculation(asked).items():
        option = name.replace("_", "-")
        if option in _TRANSLATIONS:
            for key, meant in _TRANSLATIONS[option](name, value).items():
                is_second = key in found and key == "max_num_batched_tokens"  # of two names
                found[key] = min(found[key], meant) if is_second else meant
        elif option in NO_EFFECT:
            idle.append(option)
        elif option in ALWAYS:
            if plain(value) is False:
                raise ConfigError(f"{name}: must be true, as it always is here, got {value!r}")
        elif option in ONE_WAY:
            _check_one_way(name, value, ONE_WAY[option])
        elif option in ABSENT:
            if plain(value) not in (None, False, 0, [], {}):
                raise ConfigError(f"{name}: must not be given: {ABSENT[option]}")
        else:
            found[name] = value
    return found, idle


def _with_speculation(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options whose speculative config has the keys that were given one by one."""
    apart = {name: value for name, value in given.items() if name.replace("_", "-") in _DRAFTS}
    if not apart:
        return given
    left = {name: value for name, value in given.items() if name not in apart}
    for name in ("speculative-config", "speculative_config"):
        config = from_json(name, left.pop(name, None) or {})
        if not isinstance(config, dict):
            raise ConfigError(f"{name}: must be an object, got {config}")
        apart = {**config, **apart}
    keys = {_DRAFTS.get(name.replace("_", "-"), name): value for name, value in apart.items()}
    return {**left, "speculative_config": keys}


def _check_one_way(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    meant = plain(value)
    if isinstance(meant, dict):  # a limit for each of several things, or an object that has it
        limits = [each.get("count") if isinstance(each, dict) else each for each in meant.values()]
        meant = next((each for each in limits if each not in (None, *allowed)), None)
    if meant is not None and meant not in allowed and [meant] not in allowed:
        words = " or ".join(str(each) for each in allowed)
        raise ConfigError(f"{name}: must be {words}, got {value}")


def _renamed(to: str) -> _Translation:
    return lambda _, value: {to: value}


def _counted(to: str) -> _Translation:
    return lambda name, value: {} if plain(value) is None else {to: count(name, value)}


def _nothing(_: str, value: Any) -> Keywords:
    return {}


def _dtype(name: str, value: Any) -> Keywords:
    word = str(value).removeprefix("torch.")
    return {name: _DTYPES.get(word, word)}


def _max_model_len(name: str, value: Any) -> Keywords:
    if plain(value) in (None, "auto", -1):
        return {}
    return {name: count(name, value)}


def _quantization(name: str, value: Any) -> Keywords:
    word = plain(value)
    if word is None:
        return {name: "none"}
    return {name: "stored" if word in _STORED else str(word)}


def _load_format(name: str, value: Any) -> Keywords:
    return {name: "safetensors" if value == "auto" else value}


def _kv_cache_dtype(name: str, value: Any) -> Keywords:
    return {name: "fp8" if value == "fp8_e4m3" else value}


def _kv_cache_bytes(name: str, value: Any) -> Keywords:
    if plain(value) is None:
        return {}
    if (size := count(name, value)) < 1:
        raise ConfigError(f"{name}: must be at least 1, got {value}")
    return {"kv_cache_gib": size / GIB}


def _served_model_name(name: str, value: Any) -> Keywords:
    if isinstance(value, str):
        return {name: value}
    if not (isinstance(value, list | tuple) and value and all(isinstance(x, str) for x in value)):
        raise ConfigError(f"{name}: must be a name or several, got {value!r}")
    first, *others = value
    return {name: first, "served_model_alias": tuple(others)} if others else {name: first}


def _async_scheduling(_: str, value: Any) -> Keywords:
    return {"max_steps_in_flight": 1} if plain(value) is False else {}


def _executor(name: str, value: Any) -> Keywords:
    word = plain(value)
    if word in (None, "mp", "uni"):
        return {}
    if word == "ray":
        return {"launcher": "ray"}
    raise ConfigError(f"{name}: must be mp, uni or ray, got {value}")


def _speculative_config(name: str, value: Any) -> Keywords:
    config = plain(from_json(name, value))
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise ConfigError(f"{name}: must be an object, got {value}")
    config = dict(config)
    drafts: Keywords = {}
    if (number := config.pop("num_speculative_tokens", None)) is not None:
        drafts["max_draft_tokens"] = count(f"{name}.num_speculative_tokens", number)
    method, model = config.pop("method", None), config.pop("model", None)
    for key in ("prompt_lookup_max", "prompt_lookup_min", "draft_tensor_parallel_size"):
        config.pop(key, None)  # how drafts are made, not what is answered
    if config:
        raise ConfigError(f"{name}: must have no {min(config)}, got {config[min(config)]!r}")
    if method == "ngram" or (method is None and model in ("ngram", "[ngram]")):
        return {**drafts, "speculation": SpeculationMode.PROMPT_LOOKUP.value}
    if method in (None, "draft_model") and model:
        return {
            **drafts,
            "speculation": SpeculationMode.DRAFT_MODEL.value,
            "draft_model": str(model),
        }
    raise ConfigError(
        f"{name}: must have the method ngram, or draft_model with a model, got {method or value}"
    )


def _structured_outputs_config(name: str, value: Any) -> Keywords:
    config = from_json(name, value) or {}
    if not isinstance(config, dict):
        raise ConfigError(f"{name}: must be an object, got {value}")
    found: Keywords = {}
    for key, given in config.items():
        if key == "reasoning_parser" and given:
            found["reasoning_parser"] = given
        elif key == "backend" and given not in ("auto", "guidance"):
            raise ConfigError(f"{name}.backend: must be auto or guidance, got {given}")
        elif key not in ("backend", "reasoning_parser") and given:
            raise ConfigError(f"{name}.{key}: must be absent: it is not obeyed here")
    return found


def _origins(name: str, value: Any) -> Keywords:
    if isinstance(value, str):
        value = [value]
    origins = [
        each
        for one in value
        for each in (from_json(name, one) if str(one).startswith("[") else [one])
    ]
    return {"http_cors_origin": tuple(origins)}


_TRANSLATIONS: Mapping[str, _Translation] = MappingProxyType(
    {
        "allowed-origins": _origins,
        "api-key": _renamed("api_key"),
        "async-scheduling": _async_scheduling,
        "distributed-executor-backend": _executor,
        "distributed-timeout-seconds": _renamed("distributed_timeout_s"),
        "cpu-distributed-timeout-seconds": _renamed("distributed_timeout_s"),
        "dtype": _dtype,
        "enable-prefix-caching": lambda name, value: {name: value},
        "kv-cache-dtype": _kv_cache_dtype,
        "kv-cache-memory-bytes": _kv_cache_bytes,
        "load-format": _load_format,
        "max-model-len": _max_model_len,
        "max-num-active-seqs": _counted("max_num_seqs"),
        "max-num-batched-tokens": _counted("max_num_batched_tokens"),
        "max-num-queued-reqs": _counted("max_waiting"),
        "max-num-queued-tokens": _counted("max_waiting_tokens"),
        "max-num-scheduled-tokens": _counted("max_num_batched_tokens"),
        "otlp-traces-endpoint": _renamed("otlp_endpoint"),
        "quantization": _quantization,
        "served-model-name": _served_model_name,
        # vLLM 0.1.2's.
        "engine-use-ray": _nothing,
        "use-dummy-weights": lambda _, value: {"load_format": "dummy"} if plain(value) else {},
        "use-np-weights": _nothing,
        "worker-use-ray": lambda _, value: {"launcher": "ray"} if plain(value) else {},
        "shutdown-timeout": _renamed("shutdown_timeout_s"),
        "speculative-config": _speculative_config,
        "structured-outputs-config": _structured_outputs_config,
    }
)
TRANSLATED = (*_TRANSLATIONS, *_DRAFTS)
"""Options with another name or other values here."""
