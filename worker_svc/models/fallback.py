"""Any decoder of `transformers` that has no family of its own here.

`transformers` builds and runs the model; only its attention is replaced, by the paged kernels, and
its linear layers, experts and other products with weights, by layers whose rows do not depend on
each other. Before the model is served, its logits are compared with those that `transformers`
computes alone, so that a model that does something the attention interface does not show is refused
instead of being wrong.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import gcd
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from quire.contract.errors import ModelLoadError
from worker_svc.layers.attention import AttentionMetadata
from worker_svc.layers.device_linear import are_rows_independent
from worker_svc.layers.linear import HeadShare
from worker_svc.loading.hf_config import one_line
from worker_svc.loading.weights import Weights
from worker_svc.models.fallback_config import FallbackConfig
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


class FallbackForCausalLM:
    """A decoder of `transformers` over the paged cache.

    Attributes:
        vocab_size: number of token ids.
        num_layers: number of key/value caches.
        heads: of every layer.
        is_capturable: False, since what such a model does on the host is not known.
        config: of the model, of `transformers`.
        architecture: Hugging Face name.
        has_choices: whether it chooses experts.

    Args:
        model: of `transformers`, none of its parts replaced; belongs to this one from now on.
        dtype: of the model.
        device: where it is to be.
        max_model_len: limit of a sequence's length, in tokens.
        parallel: group of one rank.

    Raises:
        ModelLoadError: it cannot be served; one line with the reason.
    """

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
        parallel: ParallelGroup,
    ) -> None:
        from worker_svc.models import attention_interface
        from worker_svc.models.experts_interface import replace_experts

        self._interface = attention_interface
        self.config = copy.deepcopy(model.config)
        self.architecture = type(model).__name__
        text = self.config.get_text_config()
        self.vocab_size: int = text.vocab_size
        self.hidden_size = 0  # until the probe
        self.num_layers: int = text.num_hidden_layers
        self.is_capturable = False
        self.has_choices = False
        self._device = device
        fix_rope_frequencies(model, max_model_len)
        _move(model, device)
        self._body = model.base_model
        self._windows: list[int | None] = []  # until the probe
        self._products: AbstractContextManager[Any] = nullcontext()
        # The model without its body: the head, and whatever follows it.
        self._hidden = _Hidden()
        self._head = copy.copy(model)
        self._head._modules = {**model._modules, model.base_model_prefix: self._hidden}
        try:
            self.heads = self._probe_heads(model, parallel, max_model_len)
            expected = own_logits(model, *probe_inputs(self.vocab_size, device))
            model.set_attn_implementation(self._interface.NAME)
            replace_linears(model)
            self.has_choices = bool(matrices_of(model))
            replace_experts(model)
            matrices = matrices_of(model)
            if matrices and are_rows_independent(device):
                self._products = RowwiseProducts(matrices)
            self._head._modules.update(
                {name: each for name, each in model._modules.items() if each is not self._body}
            )
            self._check_against(expected, dtype)
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

    def tolerance(self, dtype: torch.dtype) -> float:
        """Return the largest error of its logits in a type that rounding explains."""
        return (TOLERANCE_OF_CHOICES if self.has_choices else TOLERANCE)[dtype]

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
        if not share <= self.tolerance(dtype):
            raise self._refusal(
                f"over the paged cache its logits are off by {share:.1%}: it does something that "
                "the attention interface does not show"
            )

    def _refusal(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"architectures: {self.architecture} is not served: {reason}")


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


def build_fallback(
    config: FallbackConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> FallbackForCausalLM:
    """Let `transformers` read a model, and serve it.

    Args:
        config: of the model.
        weights: whose type and device it gets.
        parallel: group of one rank.
        max_model_len: limit of a sequence's length, in tokens.

    Raises:
        ModelLoadError: it cannot be served; one line with the reason.
    """
    if parallel.size > 1:
        raise ModelLoadError(
            f"tensor_parallel_size: must be 1 for {config.architecture}, got {parallel.size}"
        )
    import transformers

    from worker_svc.models import attention_interface

    attention_interface.register()
    try:
        read: Any = transformers.AutoModelForCausalLM.from_pretrained(
            config.directory,
            dtype=weights.dtype,
            attn_implementation=attention_interface.NAME,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # whatever its many readers raise
        raise ModelLoadError(f"{config.directory}: {one_line(error)}") from error
    model, found = read
    _require_whole(config, found)
    weights.count_parameters(sum(each.numel() for each in model.parameters()))
    model.eval().requires_grad_(False)
    return FallbackForCausalLM(model, weights.dtype, weights.device, max_model_len, parallel)


def _require_whole(config: FallbackConfig, found: Mapping[str, Any]) -> None:
    """Check that a checkpoint has every tensor of its model, and no other.

    Args:
        config: of the model.
        found: by `transformers`, without what the model's class ties or leaves out by its tables.

    Raises:
        ModelLoadError: it has not; names the first tensor.
    """
    for kind, reason in (
        ("missing_keys", "must be a tensor, got none"),
        ("unexpected_keys", f"must be absent, got a tensor that {config.architecture} lacks"),
    ):
        if names := sorted(found[kind]):
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise ModelLoadError(f"{config.directory}: {names[0]}: {reason}{more}")


def own_logits(model: Any, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the logits of a text, [tokens, vocab_size] float32, as `transformers` computes them.

    Mutates: the attention of `model`, which is now that of `transformers`.

    Args:
        model: of `transformers`.
        ids: [tokens] int64.
        positions: [tokens] int64.
    """
    model.set_attn_implementation("eager")
    out = model(input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False)
    logits: torch.Tensor = out.logits[0].float()
    return logits


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
