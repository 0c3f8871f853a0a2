"""Keywords of vLLM's engine, as those of Quire's: the same meaning, or a refusal by name."""

from typing import Any

from quire.contract.errors import ConfigError

# Keywords for what Quire does in one way only: the values that ask for that way.
_ONE_WAY: dict[str, tuple[object, ...]] = {
    "allowed_local_media_path": ("", None),
    "async_scheduling": (None, True),
    "config_format": ("auto", "hf"),
    "cpu_offload_gb": (0,),
    "data_parallel_size": (1,),
    "disable_custom_all_reduce": (False, True),
    "disable_log_requests": (False, True),
    "disable_log_stats": (False, True),
    "disable_sliding_window": (False,),
    "distributed_executor_backend": (None, "mp"),
    "enable_chunked_prefill": (None, True),
    "enable_log_requests": (False, True),
    "enable_lora": (False,),
    "enable_prompt_adapter": (False,),
    "enable_sleep_mode": (False,),
    "generation_config": ("vllm",),
    "guided_decoding_backend": ("auto", None),
    "hf_overrides": (None, {}),
    "hf_token": (None,),
    "kv_transfer_config": (None,),
    "limit_mm_per_prompt": (None, {}),
    "max_logprobs": (20,),
    "mm_processor_kwargs": (None, {}),
    "model_impl": ("auto",),
    "override_generation_config": (None, {}),
    "pipeline_parallel_size": (1,),
    "rope_scaling": (None, {}),
    "runner": ("auto", "generate"),
    "scheduling_policy": ("fcfs", "priority"),
    "skip_tokenizer_init": (False,),
    "speculative_config": (None,),
    "task": ("auto", "generate"),
    "tokenizer": (None,),
    "tokenizer_mode": ("auto",),
    "tokenizer_revision": (None,),
    "trust_remote_code": (False,),
}
# Other words for values that Quire has.
_SAME: dict[str, dict[Any, str]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "load_format": {"auto": "safetensors"},
    "quantization": {
        None: "none",
        **dict.fromkeys(("awq", "gptq", "compressed-tensors"), "stored"),
        **dict.fromkeys(("awq_marlin", "gptq_marlin"), "stored"),
    },
    "kv_cache_dtype": {"fp8_e4m3": "fp8"},
}


def translate(keywords: dict[str, Any], model: object = None) -> dict[str, Any]:
    """Return keywords that may be vLLM's as Quire's alone.

    Args:
        keywords: of `LLM` or EngineArgs.
        model: as given there; a tokenizer of that name is its own.

    Raises:
        ConfigError: one asks for something that Quire does not do.
    """
    found = {}
    for name, given in keywords.items():
        value = str(given).removeprefix("torch.") if name == "dtype" else given
        if name in _ONE_WAY:
            if value not in _ONE_WAY[name] and not (name == "tokenizer" and value == model):
                allowed = " or ".join(map(repr, _ONE_WAY[name]))
                raise ConfigError(f"{name}: must be {allowed}, got {value!r}")
            continue
        if name in _SAME:
            value = _SAME[name].get(value, value)
        if name != "enable_prefix_caching" or value is not None:
            found[name] = value
    return found
