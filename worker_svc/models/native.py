"""The names of the architectures that families of our own serve; registry.py has the families.

Apart from them, since a name is asked for before torch is loaded.
"""

# Of checkpoints with a language-model head.
NATIVE = frozenset(
    {
        "BloomForCausalLM",
        "Cohere2ForCausalLM",
        "CohereForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "FalconForCausalLM",
        "GPT2LMHeadModel",
        "GPTJForCausalLM",
        "GPTNeoXForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GemmaForCausalLM",
        "Glm4ForCausalLM",
        "GlmForCausalLM",
        "GraniteForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "MptForCausalLM",
        "OPTForCausalLM",
        "Olmo2ForCausalLM",
        "Phi3ForCausalLM",
        "PhiForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "StableLmForCausalLM",
        "Starcoder2ForCausalLM",
    }
)


def without_head(architecture: str) -> str | None:
    """Return the name of an architecture whose checkpoints were saved without the head.

    Embedding models often are. None for Gemma3ForCausalLM: Gemma3Model is of images too, and
    Gemma3TextModel mostly looks both ways.
    """
    if architecture == "Gemma3ForCausalLM":
        return None
    return architecture.replace("ForCausalLM", "Model").replace("LMHeadModel", "Model")


_NAMES = NATIVE | {without_head(name) for name in NATIVE}


def is_native(architecture: str) -> bool:
    """Return whether a family of our own serves an architecture, with its head or without."""
    return architecture in _NAMES
