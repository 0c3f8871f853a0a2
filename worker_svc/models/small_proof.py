"""A proof of a model's kinds of layers, on a small model of them with random weights.

A model that was loaded is too large to be run past its windows before it is served. A small one of
the same class and kinds of layers, whose windows, chunks and chosen keys have 64 tokens at most, is
run through 200: its logits must be those of `transformers`, and its bits depend on nothing else.
"""

import copy
from typing import Any

import torch

from quire.contract.errors import ModelLoadError
from worker_svc.loading.hf_config import one_line
from worker_svc.models.bits_proof import ON_SMALL_WEIGHTS, find_dependence
from worker_svc.models.fallback import FallbackForCausalLM, own_logits
from worker_svc.models.fallback_config import longest_sequence
from worker_svc.models.fixed_rope import fix_rope_frequencies
from worker_svc.models.probe import probe_inputs, relative_error
from worker_svc.models.small_model import random_model, small_config
from worker_svc.models.trial import Rows, Trial
from worker_svc.parallel.group import ParallelGroup

WINDOW = 64
"""Most tokens of windows, chunks and chosen keys."""


def find_fault(config: Any, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return what is wrong with a small model of a configuration's layers; None if nothing is.

    Args:
        config: of `transformers`, of a decoder that the fallback serves.
        dtype: in which it is served; it is run in float32, too.
        device: where it is served.
    """
    try:
        small = small_config(config, WINDOW)
        for each in dict.fromkeys((torch.float32, dtype)):
            fault = _find_fault(small, each, device)
            if fault is not None:
                return (
                    f"a small model of its layers, in {str(each).removeprefix('torch.')}: {fault}"
                )
    except ModelLoadError as error:
        return f"a small model of its layers is not served: {error.message}"
    except Exception as error:  # whatever its configuration's or its own code raises
        return f"no small model of its layers can be run: {one_line(error)}"
    return None


def _find_fault(config: Any, dtype: torch.dtype, device: torch.device) -> str | None:
    limit = longest_sequence(config.get_text_config()) or ON_SMALL_WEIGHTS.length
    length = min(ON_SMALL_WEIGHTS.length, limit)
    model = random_model(config, dtype).to(device)
    ids, positions = probe_inputs(config.get_text_config().vocab_size, device, length)
    exact = copy.deepcopy(model).float()
    fix_rope_frequencies(exact, limit)
    fix_rope_frequencies(model, limit)
    expected = own_logits(exact, ids, positions)
    # Of some kinds of layers rounding alone explains more than of most.
    own_share = relative_error(own_logits(model, ids, positions), expected)
    served = FallbackForCausalLM(model, dtype, device, limit, ParallelGroup())
    trial = Trial(served, dtype, device, length=length, places=1)
    logits = served.compute_logits(trial.step([Rows(ids, 0, length, 0)]))
    share = relative_error(logits, expected)
    if not share <= max(served.tolerance(dtype), 2 * own_share):
        return f"its logits are off by {share:.1%}"
    reason = find_dependence(served, dtype, device, limit, ON_SMALL_WEIGHTS)
    return None if reason is None else f"bits depend on {reason}"
