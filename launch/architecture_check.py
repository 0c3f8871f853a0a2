"""Whether workers serve a model's architecture, as far as that shows without running its code.

A model without a family of our own is run by `transformers`, whose import takes seconds. What it
says of its architectures is therefore read from its files.
"""

import ast
import re
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from quire.contract.errors import ModelLoadError
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.quant_method import quant_method
from worker_svc.models.native import is_native

# Of the file that says which architecture is the causal decoder of a type of models.
_CAUSAL = re.compile(
    r"^MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict\(\s*(\[.*?^    \])", re.MULTILINE | re.DOTALL
)
# Native families that have no default for the number of their heads, and those that read none of
# key/value heads.
NEED_HEADS = ("Deepseek", "Glm", "Granite", "Llama", "Mistral", "Mixtral", "Olmo2", "Qwen")
ONE_KIND_OF_HEADS = ("Bloom", "Falcon", "GPT", "Mpt", "OPT")
# Of a file of models: one whose base is of that file, and one that hands its attention over.
_OWN_BASE = re.compile(r"^class \w+\(PreTrainedModel\b", re.MULTILINE)
_HANDED_OVER = re.compile(r"_supports_attention_backend\b[^=\n]*= *True")


def check_architecture(
    hf: HfConfig, *, tensor_parallel_size: int, quantization: str, load_format: str
) -> None:
    """Check that a model's architecture and format are served, as they are asked to be.

    Args:
        hf: config.json, or what stands for it in a GGUF file.
        tensor_parallel_size: workers that share the model.
        quantization: of `LoadOptions`.
        load_format: likewise.

    Raises:
        ModelLoadError: they are not, or config.json has keys of wrong types. Reasons that show
            only when the model runs, a worker reports.
    """
    if not hf.flag("is_causal", True):
        raise hf.error("is_causal", "must be true: a token of a decoder sees none behind it")
    names, model_type = _architectures(hf), hf.text("model_type", "")
    if any(map(is_native, names)):
        if load_format != "dummy":  # which has no weights of a format
            quant_method(hf, is_native=True)
        return
    # Without a type, transformers guesses one by the model's name.
    if not _causal_decoders() or not model_type:
        return
    if not names:
        raise ModelLoadError(
            "architectures: must name a decoder, or model_type must be that of one, got none and "
            f"{model_type!r}"
        )
    architecture = names[0]
    quant_method(hf, is_native=False)
    _check_decoder(architecture, model_type, hf)
    for name, value, only in (
        ("tensor_parallel_size", tensor_parallel_size, 1),
        ("quantization", quantization, "none"),
        ("load_format", load_format, "safetensors"),
    ):
        if value != only:
            raise ModelLoadError(
                f"{name}: must be {only} for {architecture}, which transformers runs, got {value}"
            )


def _architectures(hf: HfConfig) -> list[str]:
    """Return the architectures that a config.json names, or has by its type."""
    names, model_type = hf.texts("architectures"), hf.text("model_type", "")
    if not names and model_type in _causal_decoders():
        names = [_causal_decoders()[model_type]]
    return names


def check_heads(hf: HfConfig) -> None:
    """Check the numbers of heads of a native architecture, as far as they are told.

    Args:
        hf: as of `check_architecture`.

    Raises:
        ModelLoadError: they are missing, or do not go with one another.
    """
    architecture = next(filter(is_native, _architectures(hf)), None)
    if architecture is None:
        return
    if architecture.startswith(NEED_HEADS):
        hf.integer("num_attention_heads")
    keys = ("num_attention_heads", "num_key_value_heads")
    if architecture.startswith(ONE_KIND_OF_HEADS) or not all(key in hf for key in keys):
        return
    heads, kv_heads = map(hf.integer, keys)
    if heads % kv_heads:
        raise ModelLoadError(
            f"num_attention_heads: must be a multiple of num_key_value_heads ({kv_heads}), "
            f"got {heads}"
        )


def _check_decoder(architecture: str, model_type: str, hf: HfConfig) -> None:
    """Check that an architecture is a decoder with the attention that is served.

    Raises:
        ModelLoadError: it is not.
    """
    known = _causal_decoders()
    # That of another type may be right: a few types are read as another one.
    if architecture not in known.values():
        reason = f"transformers {version('transformers')} has no causal decoder of that name"
        if "auto_map" in hf:
            reason += ", and code from a model directory is not run"
        elif not architecture.endswith("ForCausalLM"):
            reason += ", and vectors are those of a decoder's last token"
        raise ModelLoadError(f"architectures: {architecture} is not served: {reason}")
    if known.get(model_type) == architecture and not _may_hand_over(model_type):
        raise ModelLoadError(
            f"architectures: {architecture} is not served: its attention does not go through "
            "transformers' attention interface"
        )


def _may_hand_over(model_type: str) -> bool:
    """Return whether the models of a type may hand their attention over; True if unsure."""
    folder = model_type.replace("-", "_")
    files = _texts(f"models/{folder}", "modeling_*.py") or _texts(
        f"models/{folder.removesuffix('_text')}", "modeling_*.py"
    )
    return not files or any(
        _HANDED_OVER.search(each) or not _OWN_BASE.search(each) for each in files
    )


@cache
def _causal_decoders() -> dict[str, str]:
    """Return the architecture of each type of models; none if that is not found."""
    for text in _texts("models/auto", "modeling_auto.py"):
        if found := _CAUSAL.search(text):
            with suppress(ValueError, SyntaxError):
                return dict(ast.literal_eval(found[1]))
    return {}


def _texts(folder: str, pattern: str) -> list[str]:
    """Return the texts of files of the installed transformers, which is not imported."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return []
    files = (Path(spec.origin).parent / folder).glob(pattern)
    with suppress(OSError, ValueError):
        return [each.read_text("utf-8") for each in files]
    return []
