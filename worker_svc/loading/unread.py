"""Tensors of a checkpoint that its model has no place for: refused, unless they change nothing.

A model without a part of its checkpoint would be another, and answer in silence. What may be left
out is named by the family (ModelFamily.left_out) and by the format, or is a copy of what was read.
"""

import re

from quire.contract.errors import ModelLoadError
from worker_svc.layers.decoder_stack import DecoderConfig
from worker_svc.loading.checkpoint import Checkpoint
from worker_svc.loading.digest import CheckpointDigest
from worker_svc.loading.quantized_checkpoint import QuantizedCheckpoint
from worker_svc.loading.weights import SafetensorsCheckpoint

_HEAD = re.compile(r"(lm_head|embed_out)\.(weight|bias)")
# Of any family: computed from the configuration.
_FREQUENCIES = r"\.inv_freq$"


def require_all_read(checkpoint: Checkpoint, digest: CheckpointDigest) -> None:
    """Check that a model of a family of our own has a place for every tensor of its checkpoint.

    Args:
        checkpoint: of which the whole model was built.
        digest: of its tensors.

    Raises:
        ModelLoadError: it has not; names the first such tensor.
    """
    reader, config = checkpoint.reader, checkpoint.config
    if not isinstance(config, DecoderConfig) or not isinstance(
        reader, SafetensorsCheckpoint | QuantizedCheckpoint
    ):
        return
    patterns = (_FREQUENCIES, *checkpoint.family.left_out(checkpoint.hf))
    unread = [name for name in reader.unread() if not _matches(name, patterns)]
    if not config.has_head:
        unread = [name for name in unread if not _HEAD.fullmatch(name)]
    elif config.tie_word_embeddings:
        read = checkpoint.tensors.keys() - unread
        for name in filter(_HEAD.fullmatch, list(unread)):
            if not digest.is_copy(name, read):
                raise checkpoint.hf.error(
                    "tie_word_embeddings",
                    f"must be false where {name} is not the embedding's, got true",
                )
            unread.remove(name)
    if unread:
        more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
        raise ModelLoadError(
            f"{checkpoint.tensors[unread[0]].path}: {unread[0]}: must be absent, got a tensor that "
            f"{checkpoint.architecture} does not have{more}"
        )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)
