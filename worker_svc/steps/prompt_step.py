"""A step of made-up prompts: to profile, to warm up, to calibrate."""

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.arrays import IntArray
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.loading.loader import LoadedModel


@torch.inference_mode()
def run_prompts(
    loaded: LoadedModel,
    caches: KVCaches,
    lengths: npt.NDArray[np.int32],
    input_ids: IntArray,
    slot_mapping: IntArray,
    block_tables: npt.NDArray[np.int32],
) -> None:
    """Run a model up to the logits of the last token of each prompt.

    Mutates: the caches, where slots are not negative.

    Args:
        loaded: the model.
        caches: caches to write and read.
        lengths: [num_seqs] int32 tokens of each prompt.
        input_ids: [sum of lengths] int64.
        slot_mapping: [sum of lengths] int64.
        block_tables: [num_seqs, max blocks] int32.
    """
    num_tokens = len(input_ids)
    query_start_loc = np.zeros(len(lengths) + 1, np.int32)
    query_start_loc[1:] = lengths.cumsum()
    placed = loaded.device.place(
        {
            "input_ids": input_ids,
            "positions": np.concatenate([np.arange(length) for length in lengths]),
            "slot_mapping": slot_mapping,
            "block_tables": block_tables,
            "seq_lens": lengths,
            "query_start_loc": query_start_loc,
            "last_rows": query_start_loc[1:].astype(np.int64) - 1,
        }
    )
    plans = AttentionPlans()
    plans.begin(torch.from_numpy(lengths), torch.from_numpy(query_start_loc))
    metadata = AttentionMetadata(
        caches=caches,
        num_tokens=num_tokens,
        slot_mapping=placed["slot_mapping"],
        block_tables=placed["block_tables"],
        seq_lens=placed["seq_lens"],
        query_start_loc=placed["query_start_loc"],
        plans=plans,
    )
    hidden = loaded.model.forward(placed["input_ids"], placed["positions"], metadata)
    loaded.model.compute_logits(hidden.index_select(0, placed["last_rows"]))
