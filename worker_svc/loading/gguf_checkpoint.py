"""The weights of a GGUF file, under the names and in the order of Hugging Face."""

import re

import numpy as np
import torch
from numpy.typing import NDArray

from quire.contract.errors import ModelLoadError
from quire.gguf_file import GgufFile, GgufTensor
from worker_svc.loading.digest import StoredBytes
from worker_svc.loading.gguf_blocks import dequantised
from worker_svc.loading.gguf_config import gguf_family, read_gguf_config
from worker_svc.loading.gguf_types import BLOCK_TYPES, check_tensors, num_bytes

Indices = NDArray[np.intp]
_FIRST = np.arange(1)
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_POST_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


class GgufCheckpoint:
    """Dequantises the rows that are asked for.

    Attributes:
        config: what config.json would hold.

    Args:
        file: the head of the file.

    Raises:
        ModelLoadError: an architecture, metadata or a type of tensors that is not served, or a
            tensor that reaches beyond the end of the file.
    """

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._data = np.memmap(file.path, np.uint8, "r")
        family = gguf_family(file)
        check_tensors(file)
        self.config = read_gguf_config(file, lambda each: self._rows(each, _FIRST)[0].tolist())
        self._names = _NAMES | (_POST_NORM_NAMES if family.has_post_norms else {})
        self._has_shifted_norms = family.has_shifted_norms
        self._names_read: set[str] = set()
        self._heads: dict[str, int] = {}
        if family.has_interleaved_heads:
            heads = self.config.integer("num_attention_heads")
            kv_heads = self.config.integer("num_key_value_heads", heads)
            self._heads = {"attn_q": heads, "attn_k": kv_heads}

    def stored_bytes(self) -> dict[str, StoredBytes]:
        """Return where the bytes of each tensor are, by its name in the file."""
        return {
            name: StoredBytes(
                self._file.path,
                tensor.begin,
                tensor.begin + num_bytes(tensor),
                BLOCK_TYPES[tensor.type_id].name,
                list(tensor.shape),
            )
            for name, tensor in self._file.tensors.items()
        }

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name of Hugging Face."""
        return self._stored_name(name) in self._file.tensors

    def read(self, name: str, shape: tuple[int, ...], part: tuple[range, ...]) -> torch.Tensor:
        """Return part of a tensor as float32.

        Args:
            name: as in a checkpoint of Hugging Face.
            shape: shape that the whole tensor must have.
            part: indices of each leading dimension; all indices of the other dimensions.

        Raises:
            ModelLoadError: missing, or of another shape.
        """
        stored_name = self._stored_name(name)
        tensor = self._file.tensors.get(stored_name)
        if tensor is None:
            raise ModelLoadError(f"{self._file.path}: tensor {stored_name} is missing")
        if tensor.shape != shape:
            raise ModelLoadError(
                f"{self._file.path}: tensor {stored_name} has shape {list(tensor.shape)}, but its "
                f"metadata asks for {list(shape)}"
            )
        self._names_read.add(stored_name)
        heads = self._heads.get(stored_name.split(".")[-2])
        if len(shape) == 1:
            values = self._rows(tensor, _FIRST)[0]
            if self._has_shifted_norms and "_norm." in stored_name:
                values = values - 1
            if heads is not None:
                values = values[torch.from_numpy(_order(shape[0], heads))]
            return values[slice(part[0].start, part[0].stop)] if part else values
        rows = np.arange(shape[0]) if heads is None else _order(shape[0], heads)
        weight = self._rows(tensor, rows[part[0].start : part[0].stop] if part else rows)
        return weight[:, slice(part[1].start, part[1].stop)] if len(part) > 1 else weight

    def require_all_read(self) -> None:
        """Check that the model has a place for every tensor.

        Raises:
            ModelLoadError: one was not read; the model without it would be another.
        """
        for name in self._file.tensors:
            if name not in self._names_read and not name.startswith("rope_"):
                raise ModelLoadError(
                    f"{self._file.path}: {name}: must be absent, got a tensor that "
                    f"{self.config.texts('architectures')[0]} does not have"
                )

    def _rows(self, tensor: GgufTensor, rows: Indices) -> torch.Tensor:
        """Return rows of a tensor [N, K], or of [K] as one row: float32."""
        form = BLOCK_TYPES[tensor.type_id]
        begin, width = tensor.begin, form.row_bytes(tensor.shape[-1])
        stored = self._data[begin : begin + num_bytes(tensor)].reshape(-1, width)
        return dequantised(form, torch.from_numpy(stored[rows]))

    def _stored_name(self, name: str) -> str:
        layer, _, suffix = name.rpartition(".")
        if found := _LAYER.fullmatch(layer):
            return f"blk.{found[1]}.{self._names.get(found[2], found[2])}.{suffix}"
        return f"{self._names.get(layer, layer)}.{suffix}"


def _order(num_features: int, heads: int) -> Indices:
    """Return, for each feature of Hugging Face, where it is stored: halves of heads in turn."""
    stored = np.arange(num_features).reshape(heads, -1, 2)
    return stored.swapaxes(1, 2).reshape(-1)
