"""Any decoder of `transformers` that has no family of its own here.

`transformers` builds and runs the model; only its attention is replaced, by the paged kernels, and
its linear layers, experts and other products with weights, by layers whose rows do not depend on
each other. Before the model is served, its
logits are compared with those that `transformers` computes alone, so that a model that does
something the attention interface does not show is refused instead of being wrong.
"""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from quire.contract.errors import ModelLoadError
from quire.observe.log import get_logger
from worker_svc.layers.attention import AttentionMetadata
from worker_svc.layers.device_linear import are_rows_independent
from worker_svc.layers.linear import HeadShare
from worker_svc.loading.hf_config import HfConfig, one_line
from worker_svc.loading.weights import Weights
from worker_svc.models.bits_proof import find_dependence
from worker_svc.models.fixed_rope import fix_rope_frequencies
from worker_svc.models.probe import (
    TOLERANCE,
    TOLERANCE_OF_CHOICES,
    probe_inputs,
    relative_error,
    run_probe,
)
from worker_svc.models.rowwise import (
    RowwiseProducts,
    matrices_of,
    one_torch_thread,
    padded_rows,
    replace_linears,
)
from worker_svc.parallel.group import ParallelGroup

ROWS_STEP = 64
"""Rows are padded to a multiple of it: torch adds up rows of other numbers in another order, and
computes what is left behind whole vectors, up to 64 elements, by other code than those."""

log = get_logger()


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
    return FallbackConfig(
        directory=hf.directory,
        architecture=architecture,
        vocab_size=text.vocab_size,
        max_position_embeddings=_positions(hf, text),
        num_layers=text.num_hidden_layers,
    )


def _positions(hf: HfConfig, config: Any) -> int:
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    raise hf.error("max_position_embeddings", "is missing")


class FallbackForCausalLM:
    """A decoder of `transformers` over the paged cache.

    Attributes:
        vocab_size: number of token ids.
        num_layers: number of key/value caches.
        heads: of every layer.
        is_capturable: False, since what such a model does on the host is not known.
        keeps_bits: whether its bits were proved to depend on no other row, cut or step.

    Raises:
        ModelLoadError: it cannot be served; one line with the reason.
    """

    def __init__(
        self,
        config: FallbackConfig,
        weights: Weights,
        parallel: ParallelGroup,
        max_model_len: int,
    ) -> None:
        if parallel.size > 1:
            raise ModelLoadError(
                f"tensor_parallel_size: must be 1 for {config.architecture}, got {parallel.size}"
            )
        from worker_svc.models import attention_interface
        from worker_svc.models.experts_interface import replace_experts

        self._interface = attention_interface
        self._config = config
        self.vocab_size = config.vocab_size
        self.hidden_size = 0  # until the probe
        self.num_layers = config.num_layers
        self.is_capturable = False
        self._device = weights.device
        model = _load(config, weights.dtype)
        fix_rope_frequencies(model, max_model_len)
        _move(model, weights.device)
        weights.count_parameters(sum(each.numel() for each in model.parameters()))
        self._body = model.base_model
        self._windows: list[int | None] = []  # until the probe
        self._has_choices = False
        self._products: AbstractContextManager[Any] = nullcontext()
        # The model without its body: the head, and whatever follows it.
        self._hidden = _Hidden()
        self._head = copy.copy(model)
        self._head._modules = {**model._modules, model.base_model_prefix: self._hidden}
        try:
            self.heads = self._probe_heads(model, parallel, max_model_len)
            expected = self._own_logits(model)
            replace_linears(model)
            self._has_choices = bool(matrices_of(model))
            replace_experts(model)
            matrices = matrices_of(model)
            if matrices and are_rows_independent(self._device):
                self._products = RowwiseProducts(matrices)
            self._head._modules.update(
                {name: each for name, each in model._modules.items() if each is not self._body}
            )
            self._check_against(expected, weights.dtype)
            self.keeps_bits = self._prove_bits(weights.dtype, max_model_len)
        except ModelLoadError:
            raise
        except Exception as error:  # whatever the model's own code raises
            raise self._refusal(f"a first run failed: {one_line(error)}") from error

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the last hidden states [rows, hidden_size]; see CausalLM.

        Mutates: the caches of `metadata`.
        """
        num_tokens = len(input_ids)
        padding = -num_tokens % ROWS_STEP
        with self._interface.attending(metadata, self._windows), self._rows(num_tokens, padding):
            hidden = self._run_body(
                functional.pad(input_ids, (0, padding)), functional.pad(positions, (0, padding))
            )
        return hidden[:num_tokens]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [rows, vocab_size] float32; see CausalLM."""
        num_rows = len(hidden)
        # Where a row of logits is whole vectors, as most are, so are all of them.
        padding = -num_rows % (ROWS_STEP // gcd(ROWS_STEP, self.vocab_size, self.hidden_size))
        self._hidden.value = functional.pad(hidden, (0, 0, 0, padding)).unsqueeze(0)
        placeholder = torch.zeros(1, num_rows + padding, dtype=torch.int64, device=hidden.device)
        with self._rows(num_rows, padding):
            logits: torch.Tensor = self._head(input_ids=placeholder, use_cache=False).logits
        return logits[0, :num_rows].float().contiguous()

    @contextmanager
    def _rows(self, real: int, padding: int) -> Iterator[None]:
        """Compute `real` rows and as many of padding in the block, none depending on others."""
        with padded_rows(real + padding, real), one_torch_thread(), self._products:
            yield

    def _run_body(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = self._body(
            input_ids=input_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
        )
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden

    # ---------------------------------------------------------------- before it is served

    def _probe_heads(self, model: Any, parallel: ParallelGroup, max_model_len: int) -> HeadShare:
        """Return the heads that the layers attend with.

        Mutates: hidden_size and the windows; the attention of `model`, while it runs.

        Raises:
            ModelLoadError: a layer does not attend exactly once, differs from the others, or needs
                what the kernels do not support.
        """
        ids, positions = probe_inputs(self.vocab_size, self._device)
        model.set_attn_implementation(self._interface.RECORDING)
        with self._interface.recording(max_model_len) as calls:
            self.hidden_size = self._run_body(ids, positions).shape[-1]
        model.set_attn_implementation(self._interface.NAME)
        self._windows = [call.window for call in calls]
        layers = [call.layer_index for call in calls]
        if layers != list(range(self.num_layers)):
            raise self._refusal(
                f"each of its {self.num_layers} layers must attend once, in order; "
                f"attention was called by layers {layers}"
            )
        shapes = {(each.num_heads, each.num_kv_heads, each.head_dim) for each in calls}
        unserved = {name for call in calls for name in call.unserved}
        if len(shapes) > 1:
            raise self._refusal(f"its layers differ in heads and head sizes: {sorted(shapes)}")
        if unserved:
            raise self._refusal(f"its attention uses {', '.join(sorted(unserved))}")
        first = calls[0]
        if first.value_dim > first.head_dim:
            raise self._refusal(
                f"values of {first.value_dim} features beside keys of {first.head_dim}"
            )
        return HeadShare(first.num_heads, first.num_kv_heads, first.head_dim, parallel)

    def _own_logits(self, model: Any) -> torch.Tensor:
        """Return the probe's logits, [PROBE_TOKENS, vocab_size], as `transformers` computes them.

        Mutates: the attention of `model`, while it runs.
        """
        ids, positions = probe_inputs(self.vocab_size, self._device)
        model.set_attn_implementation("eager")
        out = model(
            input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
        )
        model.set_attn_implementation(self._interface.NAME)
        logits: torch.Tensor = out.logits[0].float()
        return logits

    def _check_against(self, expected: torch.Tensor, dtype: torch.dtype) -> None:
        """Run the probe in two steps over a paged cache and compare its logits.

        Args:
            expected: [PROBE_TOKENS, vocab_size] float32, as `transformers` computes them.
            dtype: of the model.

        Raises:
            ModelLoadError: the logits differ by more than rounding explains.
        """
        parts = []
        for _, logits in run_probe(self, dtype, self._device):
            parts.append(logits)
        share = relative_error(torch.cat(parts), expected)
        tolerance = TOLERANCE_OF_CHOICES if self._has_choices else TOLERANCE
        if not share <= tolerance[dtype]:
            raise self._refusal(
                f"over the paged cache its logits are off by {share:.1%}: it does something that "
                "the attention interface does not show"
            )

    def _prove_bits(self, dtype: torch.dtype, limit: int) -> bool:
        """Return whether a token's bits were the same alone, in company and in chunks."""
        if not are_rows_independent(self._device):
            return False
        reason = find_dependence(self, dtype, self._device, limit)
        if reason is not None:
            log.warning(
                "no_numerics_id",
                architecture=self._config.architecture,
                reason=f"bits depend on {reason}",
                lost="its streams are not moved or resumed as equal",
            )
        return reason is None

    def _refusal(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"architectures: {self._config.architecture} is not served: {reason}")


class _BodyOutput(tuple[torch.Tensor]):
    """A body's output of which only the hidden states are known."""

    @property
    def last_hidden_state(self) -> torch.Tensor:
        """[1, rows, hidden_size]."""
        return self[0]

    def __getattr__(self, name: str) -> None:
        """Return None for all else that heads pass on: caches, attention weights, routing."""
        return


class _Hidden(nn.Module):
    """Takes the place of a body that has run already."""

    value: torch.Tensor

    def forward(self, *_: Any, **__: Any) -> _BodyOutput:
        """Return the hidden states that were set."""
        return _BodyOutput((self.value,))


def _load(config: FallbackConfig, dtype: torch.dtype) -> Any:
    import transformers

    from worker_svc.models import attention_interface

    attention_interface.register()
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            config.directory,
            dtype=dtype,
            attn_implementation=attention_interface.NAME,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except Exception as error:  # whatever its many readers raise
        raise ModelLoadError(f"{config.directory}: {one_line(error)}") from error
    return model.eval().requires_grad_(False)


def _move(model: nn.Module, device: torch.device) -> None:
    """Move parameters and buffers to a device; tensors that layers share stay shared.

    Mutates: model.
    """
    moved: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor.device != device:
                    if tensor not in moved:
                        there = tensor.detach().to(device)
                        is_parameter = isinstance(tensor, nn.Parameter)
                        moved[tensor] = nn.Parameter(there, False) if is_parameter else there
                    held[name] = moved[tensor]  # type: ignore[assignment]
