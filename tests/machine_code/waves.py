"""How well the first attention kernels fill a device, by arithmetic alone.

A launch has a block for each sequence, query head and tile of the context. With one block at once
on a multiprocessor they run in waves, the last of which may leave most of the device idle.
"""

import math

# A half of the logits as they come in, and a float of their sum, for each token.
ONE_PASS_BYTES_OF_TOKEN = 2 + 4


def waves(num_seqs: int, num_heads: int, num_tiles: int, num_multiprocessors: int) -> float:
    """Return how often the device is filled, the last time perhaps in part."""
    return num_seqs * num_heads * num_tiles / num_multiprocessors


def occupancy(num_waves: float) -> float:
    """Return the share of multiprocessors that work, over all waves."""
    return num_waves / math.ceil(num_waves)


def one_pass_tokens(shared_bytes: int) -> int:
    """Return the longest context whose logits fit a block that has so much shared memory.

    A longer one has to be cut into tiles.
    """
    return shared_bytes // ONE_PASS_BYTES_OF_TOKEN
