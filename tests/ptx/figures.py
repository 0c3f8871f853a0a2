"""What kernels do in calls of a common size: python -m tests.ptx.figures.

Prints the table of docs/gpu-code.md.
QUIRE_PTX and QUIRE_KERNELS are as csrc/ptx_tests.sh sets them.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from tests.kernels import test_attention_latent, test_layers, test_linear
from tests.kernels.cache_formats import PLAIN, Float8Cache, PlainCache
from tests.kernels.conftest import EMULATED, forced
from tests.kernels.paged import History, Span, attend
from tests.kernels.test_sampling import Rows, random_logits
from tests.kernels.test_weight_only_linear import FLOAT8, FORMS, Form, weight_of
from tests.ptx import interpreter
from tests.ptx.coverage import PRODUCTS
from worker_svc.layers.weight_only_linear import WeightOnlyLinear

BF16 = torch.bfloat16
VOCABULARY = 128_256


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is counted.

    Attributes:
        name: in the table.
        kernel: pattern of its kernels' mangled names.
        run: makes the call.
        units: of work that it does.
        unit: what one is.
    """

    name: str
    kernel: str
    run: Callable[[], object]
    units: int
    unit: str


def attention(
    name: str,
    head_size: int,
    group: int,
    rows: int,
    cache: PlainCache = PLAIN,
    *,
    by_warpgroups: bool = False,
) -> Call:
    """Attention of the last rows of a sequence of 1,024 tokens, with one key/value head."""
    length = 1024
    history = History.random(length, group, 1, head_size, BF16, 0)
    span = Span(history, length - rows, length)
    pairs = sum(range(length - rows + 1, length + 1))

    def run() -> None:
        with nullcontext() if by_warpgroups else interpreter.single_warps():
            attend([span], cache=cache)

    return Call(
        f"attention, {name}",
        "attention_mma_kernel|attention_prompt_kernel|warpgroup_prompt_kernel",
        run,
        pairs,
        "row and key",
    )


def latent(heads: int) -> Call:
    """Latent attention of the last row of 1,024 tokens."""
    [span] = test_attention_latent.batch(heads, BF16, (1023, 1024))
    return Call(
        f"latent attention, bfloat16, {heads} heads, decode",
        "attention_latent_kernel",
        lambda: attend([span]),
        1024,
        "row and key",
    )


def linear(rows: int) -> Call:
    """A layer whose tiles are those of so many rows, multiplied by single warps."""
    x, weight, _ = test_linear.operands(rows, 1024, 256, BF16)

    def run() -> None:
        with interpreter.single_warps():
            test_linear.linear(x, weight)

    return Call(
        f"linear, {rows} rows",
        "linear_kernel",
        run,
        rows * 256,
        "result of 1,024 products",
    )


def weight_only_linear(form: Form, rows: int) -> Call:
    """A layer of 8 or 4 bits in groups of 128."""
    x = test_linear.operands(rows, 1024, 256, BF16)[0]
    layer = WeightOnlyLinear(weight_of(form, 256, 1024, 128), None, 256, 1)
    weights = "e4m3" if form == FLOAT8 else f"{form} bits"
    return Call(
        f"linear of {weights}, {rows} rows",
        "weight_only_kernel",
        lambda: layer(x),
        rows * 256,
        "result of 1,024 products",
    )


def sample(name: str, **params: float) -> Call:
    """A draw from a row."""
    logits = random_logits(1, VOCABULARY)
    return Call(
        f"sampler, {name}",
        "sample_.*kernel",
        lambda: Rows(logits, **params).sample(),
        VOCABULARY,
        "token",
    )


CALLS = (
    attention("bfloat16, D 128, decode", 128, 8, 1),
    attention("bfloat16, D 64, decode", 64, 8, 1),
    attention("bfloat16, D 256, decode", 256, 8, 1),
    attention("e4m3, D 128, decode", 128, 8, 1, Float8Cache()),
    attention("e4m3, D 128, prompt of 32, 4 heads a group", 128, 4, 32, Float8Cache()),
    attention("bfloat16, D 128, prompt of 32, 4 heads a group", 128, 4, 32),
    attention("bfloat16, D 64, prompt of 32, 4 heads a group", 64, 4, 32),
    attention("bfloat16, D 128, the same by warpgroups", 128, 4, 32, by_warpgroups=True),
    attention("bfloat16, D 64, the same by warpgroups", 64, 4, 32, by_warpgroups=True),
    *(latent(heads) for heads in (16, 32)),
    *(linear(rows) for rows in (8, 16, 32, 64)),
    *(weight_only_linear(form, rows) for form in FORMS for rows in (8, 64)),
    sample("greedy", temperature=0.0),
    sample("temperature"),
    sample("top-k 50", top_k=50),
    sample("top-p 0.9", top_p=0.9),
    Call(
        "fused add and norm of 4,096",
        "fused_add_rms_norm_kernel",
        lambda: test_layers.test_fused_add_rms_norm_is_both_in_turn("cuda", BF16, 4096),
        5 * 4096,
        "element",
    ),
)


def counted(call: Call) -> Counter[str]:
    """Return what the kernels of a call do."""
    before = _total(call.kernel)
    for _ in forced(EMULATED[0]):
        call.run()
    return _total(call.kernel) - before


def _total(kernel: str) -> Counter[str]:
    total: Counter[str] = Counter()
    names = set(interpreter.kernels(kernel))
    for name, report in interpreter.report().items():
        if name not in names:
            continue
        operations: dict[str, int] = report.pop("instructions")
        total.update(report)
        for operation, count in operations.items():
            total["performed"] += count
            total["mma"] += count if operation.startswith(PRODUCTS) else 0
    return total


def ratio(counts: Counter[str], of: str, to: str) -> str:
    """Return a quotient as text."""
    return f"{counts[of] / counts[to]:.3f}" if counts[to] else "none"


def row(call: Call) -> str:
    """Return the line of the table of a call, which is made."""
    counts = counted(call)
    lanes = 32 * counts["performed"] / call.units
    copied = counts["copied_bytes"] / call.units
    return (
        f"| {call.name} | {call.unit} | {lanes:.1f} "
        f"| {counts['mma'] / counts['performed']:.1%} "
        f"| {ratio(counts, 'shared_wavefronts', 'shared_ideal')} "
        f"| {ratio(counts, 'global_sectors', 'global_ideal')} "
        f"| {f'{copied:.0f} bytes' if copied else 'none'} |"
    )


def main() -> None:
    """Print the table."""
    print(
        "| call | unit | lane instructions | mma | wavefronts / ideal | sectors / ideal | copied |"
    )
    print("|---|---|---|---|---|---|---|")
    for call in CALLS:
        print(row(call))


if __name__ == "__main__":
    main()
