"""The Hugging Face architectures that are served, and how each is read and built."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from worker_svc.layers.decoder_stack import DecoderConfig
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.models.bloom import build_bloom, read_bloom
from worker_svc.models.cohere import build_cohere, read_cohere, read_cohere2
from worker_svc.models.deepseek import (
    build_deepseek,
    predicted_layers,
    read_deepseek_v2,
    read_deepseek_v3,
)
from worker_svc.models.falcon import build_falcon, read_falcon
from worker_svc.models.fallback import build_fallback
from worker_svc.models.fallback_config import read_fallback
from worker_svc.models.gemma import build_gemma, read_gemma, read_gemma2, read_gemma3
from worker_svc.models.glm import read_glm, read_glm4
from worker_svc.models.gpt2 import build_gpt2, read_gpt2
from worker_svc.models.gpt_neox import build_gpt_neox, read_gpt_neox
from worker_svc.models.gptj import build_gptj, read_gptj
from worker_svc.models.granite import read_granite
from worker_svc.models.interface import CausalLM, ModelConfig
from worker_svc.models.llama import build_llama, read_llama, read_mistral
from worker_svc.models.mixtral import read_mixtral
from worker_svc.models.mpt import build_mpt, read_mpt
from worker_svc.models.native import without_head
from worker_svc.models.olmo2 import read_olmo2
from worker_svc.models.opt import build_opt, read_opt
from worker_svc.models.phi import build_phi, read_phi
from worker_svc.models.phi3 import read_phi3
from worker_svc.models.qwen2 import read_qwen2
from worker_svc.models.qwen3 import read_qwen3
from worker_svc.models.qwen3_moe import read_qwen3_moe
from worker_svc.models.stablelm import build_stablelm, norms_of_other_ranks, read_stablelm
from worker_svc.models.starcoder2 import build_starcoder2, read_starcoder2
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """How an architecture is read and built.

    Attributes:
        read: turns config.json into the family's configuration. Raises ModelLoadError: a key is
            missing, wrong or not served.
        build: turns that, the weights, the group and the length limit into a model whose weights
            are loaded. Raises ModelLoadError: a tensor is missing or misshapen, or the ranks cannot
            share a layer.
        has_head: whether its checkpoints have a language-model head; without, they give vectors.
        left_out: patterns of the names of tensors that its checkpoints hold and the model, or its
            rank 0, does without, from config.json; see worker_svc/loading/unread.py.
    """

    read: Callable[[HfConfig], ModelConfig]
    # Any: the configuration that the family's own `read` returns.
    build: Callable[[Any, Weights, ParallelGroup, int], CausalLM]
    has_head: bool = True
    left_out: Callable[[HfConfig], tuple[str, ...]] = lambda _: ()


def _masks(scope: str) -> Callable[[HfConfig], tuple[str, ...]]:
    """Return what leaves out the causal mask, which old releases saved with each layer."""
    return lambda _: (rf"\.{scope}\.(masked_)?bias$",)


FAMILIES = {
    "LlamaForCausalLM": ModelFamily(read_llama, build_llama),
    "MistralForCausalLM": ModelFamily(read_mistral, build_llama),
    "Qwen2ForCausalLM": ModelFamily(read_qwen2, build_llama),
    "Qwen3ForCausalLM": ModelFamily(read_qwen3, build_llama),
    "Phi3ForCausalLM": ModelFamily(read_phi3, build_llama),
    "Qwen3MoeForCausalLM": ModelFamily(read_qwen3_moe, build_llama),
    "MixtralForCausalLM": ModelFamily(read_mixtral, build_llama),
    "Olmo2ForCausalLM": ModelFamily(read_olmo2, build_llama),
    "GraniteForCausalLM": ModelFamily(read_granite, build_llama),
    "GlmForCausalLM": ModelFamily(read_glm, build_llama),
    "Glm4ForCausalLM": ModelFamily(read_glm4, build_llama),
    "GemmaForCausalLM": ModelFamily(read_gemma, build_gemma),
    "Gemma2ForCausalLM": ModelFamily(read_gemma2, build_gemma),
    "Gemma3ForCausalLM": ModelFamily(read_gemma3, build_gemma),
    "OPTForCausalLM": ModelFamily(read_opt, build_opt),
    "GPT2LMHeadModel": ModelFamily(read_gpt2, build_gpt2, left_out=_masks("attn")),
    "GPTNeoXForCausalLM": ModelFamily(read_gpt_neox, build_gpt_neox, left_out=_masks("attention")),
    "GPTJForCausalLM": ModelFamily(read_gptj, build_gptj, left_out=_masks("attn")),
    "PhiForCausalLM": ModelFamily(read_phi, build_phi),
    "FalconForCausalLM": ModelFamily(read_falcon, build_falcon),
    "Starcoder2ForCausalLM": ModelFamily(read_starcoder2, build_starcoder2),
    "StableLmForCausalLM": ModelFamily(
        read_stablelm, build_stablelm, left_out=norms_of_other_ranks
    ),
    "CohereForCausalLM": ModelFamily(read_cohere, build_cohere),
    "Cohere2ForCausalLM": ModelFamily(read_cohere2, build_cohere),
    "BloomForCausalLM": ModelFamily(read_bloom, build_bloom),
    "MptForCausalLM": ModelFamily(read_mpt, build_mpt),
    "DeepseekV2ForCausalLM": ModelFamily(read_deepseek_v2, build_deepseek),
    "DeepseekV3ForCausalLM": ModelFamily(
        read_deepseek_v3, build_deepseek, left_out=predicted_layers
    ),
}

_WITHOUT_HEAD = {
    name: family for each, family in FAMILIES.items() if (name := without_head(each)) is not None
}


def _read_without_head(read: Callable[[HfConfig], ModelConfig], hf: HfConfig) -> ModelConfig:
    """Return the configuration of a checkpoint without a head; see ModelFamily.

    Raises:
        ModelLoadError: as `read`.
    """
    config = read(hf)
    assert isinstance(config, DecoderConfig), "of a family of our own"
    return replace(config, has_head=False)


def find_family(hf: HfConfig) -> tuple[str, ModelFamily]:
    """Return the architecture that a configuration names, and its family or the fallback.

    Args:
        hf: the configuration, which names one at least.

    Raises:
        ModelLoadError: its tokens see those behind them.
    """
    if not hf.flag("is_causal", True):
        raise hf.error("is_causal", "must be true: a token of a decoder sees none behind it")
    names = hf.texts("architectures")
    for name in names:
        if name in FAMILIES:
            return name, FAMILIES[name]
        if name in _WITHOUT_HEAD:
            family = _WITHOUT_HEAD[name]
            read = partial(_read_without_head, family.read)
            return name, replace(family, read=read, has_head=False)
    return names[0], ModelFamily(read_fallback, build_fallback)
