"""What sharing saves, and what preemption costs in each mode, on the embedded model.

Scheduler, block manager and model are the real ones, in one process. Run by `make bench-kv`; exits
with 1 if a preempted run gives other tokens than an undisturbed one.
"""

import statistics
import sys
from typing import Any

from tokenizers import Tokenizer

from bench.engine import Engine, Run
from launch.cluster.supervisor import embedded_model
from quire.contract.engine_options import PreemptionMode
from quire.contract.sampling_params import SamplingParams

NUM_REQUESTS = 12
NUM_PROMPT_TOKENS = 120
ROOMY, TIGHT = 3000, 110
NUM_RUNS = 3

SAMPLED: dict[str, Any] = {"seed": 0, "ignore_eos": True, "max_tokens": 60}
BEAMS: dict[str, Any] = {
    "seed": 0,
    "use_beam_search": True,
    "temperature": 0.0,
    "ignore_eos": True,
    "max_tokens": 60,
}
SHARED = {
    "n = 2": SamplingParams(n=2, **SAMPLED),
    "n = 4": SamplingParams(n=4, **SAMPLED),
    "n = 6": SamplingParams(n=6, **SAMPLED),
    "beam 2": SamplingParams(n=2, **BEAMS),
    "beam 4": SamplingParams(n=4, **BEAMS),
    "beam 6": SamplingParams(n=6, **BEAMS),
}
PREEMPTED = {"n = 1": SamplingParams(**SAMPLED), "n = 4": SHARED["n = 4"]}


def read_prompts() -> list[list[int]]:
    """Return pieces of a text that is at hand."""
    directory = embedded_model()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    token_ids = tokenizer.encode((directory / "LICENSE").read_text()).ids
    starts = range(0, NUM_REQUESTS * NUM_PROMPT_TOKENS, NUM_PROMPT_TOKENS)
    return [token_ids[start : start + NUM_PROMPT_TOKENS] for start in starts]


def print_savings(prompts: list[list[int]]) -> None:
    """Print how many blocks sharing saves."""
    print(
        f"Sharing: {NUM_REQUESTS} requests of {NUM_PROMPT_TOKENS} + 60 tokens, blocks of 16, no "
        "prefix cache\n"
        "  (Kwon et al. 2023, figure 15: parallel sampling 6 to 31 % saved, beam search 38 to 66 %)"
    )
    for name, params in SHARED.items():
        run = Engine(embedded_model(), num_blocks=ROOMY).run(prompts, params)
        unshared = run.blocks_used + run.blocks_saved
        print(
            f"  {name:8} {run.blocks_saved / unshared:6.1%} saved, "
            f"{unshared / run.blocks_used:.2f}x as many sequences in the same memory"
        )


def print_preemption_costs(prompts: list[list[int]]) -> bool:
    """Print what a small cache costs; return whether all tokens were the same."""
    same = True
    print(f"Preemption: the same requests in {TIGHT} blocks; medians of {NUM_RUNS} runs")
    for name, params in PREEMPTED.items():
        roomy, _ = timed(prompts, params, ROOMY, PreemptionMode.AUTO)
        print(f"  {name}, never preempted   {roomy.seconds:6.2f} s, {roomy.num_steps} steps")
        for mode in PreemptionMode:
            run, engine = timed(prompts, params, TIGHT, mode)
            same &= run.outputs == roomy.outputs
            counters = engine.scheduler.counters
            print(
                f"  {name}, {mode.value:10} {run.seconds:6.2f} s, {run.num_steps} steps, "
                f"{counters.preemptions} preemptions: {counters.recomputed_tokens} tokens "
                f"recomputed, {counters.swapped_out_blocks} blocks out in "
                f"{run.swap_us / 1000:.1f} ms, both ways; "
                f"{'same tokens' if run.outputs == roomy.outputs else 'OTHER TOKENS'}"
            )
    return same


def timed(
    prompts: list[list[int]], params: SamplingParams, num_blocks: int, mode: PreemptionMode
) -> tuple[Run, Engine]:
    """Return the run of the median time, and its engine."""
    runs = []
    for _ in range(NUM_RUNS):
        engine = Engine(embedded_model(), num_blocks=num_blocks, mode=mode)
        runs.append((engine.run(prompts, params), engine))
    median = statistics.median_low(run.seconds for run, _ in runs)
    return next(pair for pair in runs if pair[0].seconds == median)


def main() -> int:
    """Print both tables; return 1 if preemption changed a token."""
    prompts = read_prompts()
    print_savings(prompts)
    return int(not print_preemption_costs(prompts))


if __name__ == "__main__":
    sys.exit(main())
