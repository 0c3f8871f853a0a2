"""Which Hugging Face architectures are served, and by what."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from worker_svc.layers.rotary_decoder import RotaryDecoder
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.models.bloom import build_bloom, read_bloom
from worker_svc.models.falcon import build_falcon, read_falcon
from worker_svc.models.fallback import FallbackForCausalLM, read_fallback
from worker_svc.models.gemma import GemmaForCausalLM, read_gemma, read_gemma2, read_gemma3
from worker_svc.models.gpt2 import GPT2LMHeadModel, read_gpt2
from worker_svc.models.gpt_neox import build_gpt_neox, read_gpt_neox
from worker_svc.models.gptj import build_gptj, read_gptj
from worker_svc.models.interface import CausalLM, ModelConfig
from worker_svc.models.llama import read_llama, read_mistral
from worker_svc.models.mixtral import read_mixtral
from worker_svc.models.mpt import build_mpt, read_mpt
from worker_svc.models.opt import OPTForCausalLM, read_opt
from worker_svc.models.phi import build_phi, read_phi
from worker_svc.models.phi3 import read_phi3
from worker_svc.models.qwen2 import read_qwen2
from worker_svc.models.qwen3 import read_qwen3
from worker_svc.models.qwen3_moe import read_qwen3_moe
from worker_svc.models.starcoder2 import build_starcoder2, read_starcoder2
from worker_svc.parallel.group import ParallelGroup

ConfigT = TypeVar("ConfigT", bound=ModelConfig)


@dataclass(frozen=True, slots=True)
class ModelFamily(Generic[ConfigT]):
    """How an architecture is read and built.

    Attributes:
        read_config: turns config.json into the family's configuration.
        build: turns that, the weights, the group and the length limit into a model.
    """

    read_config: Callable[[HfConfig], ConfigT]
    build: Callable[[ConfigT, Weights, ParallelGroup, int], CausalLM]


# Any: families have configurations of different types, each known only to its own `build`.
FAMILIES: dict[str, ModelFamily[Any]] = {
    "LlamaForCausalLM": ModelFamily(read_llama, RotaryDecoder),
    "MistralForCausalLM": ModelFamily(read_mistral, RotaryDecoder),
    "Qwen2ForCausalLM": ModelFamily(read_qwen2, RotaryDecoder),
    "Qwen3ForCausalLM": ModelFamily(read_qwen3, RotaryDecoder),
    "Phi3ForCausalLM": ModelFamily(read_phi3, RotaryDecoder),
    "Qwen3MoeForCausalLM": ModelFamily(read_qwen3_moe, RotaryDecoder),
    "MixtralForCausalLM": ModelFamily(read_mixtral, RotaryDecoder),
    "GemmaForCausalLM": ModelFamily(read_gemma, GemmaForCausalLM),
    "Gemma2ForCausalLM": ModelFamily(read_gemma2, GemmaForCausalLM),
    "Gemma3ForCausalLM": ModelFamily(read_gemma3, GemmaForCausalLM),
    "OPTForCausalLM": ModelFamily(read_opt, OPTForCausalLM),
    "GPT2LMHeadModel": ModelFamily(read_gpt2, GPT2LMHeadModel),
    "GPTNeoXForCausalLM": ModelFamily(read_gpt_neox, build_gpt_neox),
    "GPTJForCausalLM": ModelFamily(read_gptj, build_gptj),
    "PhiForCausalLM": ModelFamily(read_phi, build_phi),
    "FalconForCausalLM": ModelFamily(read_falcon, build_falcon),
    "Starcoder2ForCausalLM": ModelFamily(read_starcoder2, build_starcoder2),
    "BloomForCausalLM": ModelFamily(read_bloom, build_bloom),
    "MptForCausalLM": ModelFamily(read_mpt, build_mpt),
}


def find_family(hf: HfConfig) -> tuple[str, ModelFamily[Any]]:
    """Return the architecture a configuration names, and its family or the fallback.

    Raises:
        ModelLoadError: it names none.
    """
    names = hf.texts("architectures")
    for name in names:
        if name in FAMILIES:
            return name, FAMILIES[name]
    if not names:
        served = ", ".join(FAMILIES)
        raise hf.error("architectures", f"is missing; must name {served}, or another decoder")
    return names[0], ModelFamily(read_fallback, FallbackForCausalLM)
