"""Run in a process of its own: which shapes multiply in float32, and whether the rule holds."""

import sys

import torch

from worker_svc.invariance import check_linear_invariance, check_split_invariance, float32_shapes
from worker_svc.layers.float32_products import cancelling_operands
from worker_svc.layers.invariant_linear import InvariantLinear

SHAPE = (4096, 256)
HARMLESS_SHAPE = (384, 1024)
SHAPES = (SHAPE, HARMLESS_SHAPE, (64, 64), (33, 77))
THREAD_COUNTS = (2, 8)
ROW_COUNTS = (1, 2, 7, 33, 64, 128)


def is_rule_kept(num_threads: int) -> bool:
    """Whether a share of one rank in eight gives the bits that one thread gives for the whole."""
    in_features, out_features = SHAPE
    rows, weight = cancelling_operands(in_features, torch.bfloat16, 64, out_features)
    torch.set_num_threads(1)
    whole = InvariantLinear(weight, None)(rows)
    torch.set_num_threads(num_threads)
    share = InvariantLinear(weight[: out_features // 8].contiguous(), None)(rows)
    return torch.equal(share, whole[:, : out_features // 8])


def main() -> None:
    """Print what was found with the number of threads that was given."""
    num_threads = int(sys.argv[1])
    with torch.inference_mode():
        print("without float32:", "kept" if is_rule_kept(num_threads) else "broken")
    torch.set_num_threads(num_threads)
    in_float32 = float32_shapes(torch.bfloat16, SHAPES)
    print("in float32:", ", ".join(map(str, in_float32)) or "none")
    violations = check_linear_invariance(torch.bfloat16, SHAPES, ROW_COUNTS)
    violations += check_split_invariance(torch.bfloat16, SHAPES, ROW_COUNTS)
    print(f"violations: {len(violations)}", *violations)


if __name__ == "__main__":
    main()
