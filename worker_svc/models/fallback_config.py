"""What is known of a decoder that `transformers` runs, before it is built."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.contract.errors import ModelLoadError
from worker_svc.loading.hf_config import HfConfig, one_line


@dataclass(frozen=True, slots=True)
class FallbackConfig:
    """What is known of a model before it is built.

    Attributes:
        directory: of the model.
        architecture: Hugging Face name.
        vocab_size: number of token ids.
        max_position_embeddings: length limit of a sequence, in tokens.
        num_layers: number of decoder layers, each of which must attend once.
    """

    directory: Path
    architecture: str
    vocab_size: int
    max_position_embeddings: int
    num_layers: int

    @property
    def max_context(self) -> int:
        """Longest limit that may be set, in tokens."""
        return self.max_position_embeddings

    @property
    def value_size(self) -> int | None:
        """None: `transformers` passes keys and values of their own to attention."""
        return None


def read_fallback(hf: HfConfig) -> FallbackConfig:
    """Return the configuration of a model that `transformers` knows.

    Raises:
        ModelLoadError: `transformers` does not know it, or it is not a decoder that can be served.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    (architecture, *_) = hf.texts("architectures")
    model_class: Any = getattr(transformers, architecture, None)
    if model_class is None:
        raise ModelLoadError(
            f"architectures: {architecture} is not served: transformers {transformers.__version__} "
            "does not know it, and code from a model directory is not run"
        )
    try:
        # Explicit, because transformers would ask at a terminal whether to run the model's code.
        config = transformers.AutoConfig.from_pretrained(
            hf.directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever its many readers raise
        raise ModelLoadError(f"{hf.directory}: config.json: {one_line(error)}") from error
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if causal != architecture or getattr(config, "is_encoder_decoder", False):
        is_other = not architecture.endswith("ForCausalLM")
        raise ModelLoadError(
            f"architectures: {architecture} is not served: model_type {config.model_type} has no "
            "causal decoder of that name"
            + (", and vectors are those of a decoder's last token" if is_other else "")
        )
    if not model_class._supports_attention_backend:
        raise ModelLoadError(
            f"architectures: {architecture} is not served: its attention does not go through "
            "transformers' attention interface"
        )
    text = config.get_text_config()
    longest = longest_sequence(text)
    if longest is None:
        raise hf.error("max_position_embeddings", "is missing")
    return FallbackConfig(
        directory=hf.directory,
        architecture=architecture,
        vocab_size=text.vocab_size,
        max_position_embeddings=longest,
        num_layers=text.num_hidden_layers,
    )


def longest_sequence(config: Any) -> int | None:
    """Return the length limit of a sequence, in tokens; None if a configuration names none.

    Args:
        config: of `transformers`, of a decoder.
    """
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
