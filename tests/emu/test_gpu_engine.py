"""Scheduler and a worker on an emulated GPU together: what requests get is what the CPU gives."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.engine import Engine
from bench.gpu import LLAMA_3_8B, Bench, copy_rate
from quire.contract.engine_options import LoadOptions, PreemptionMode
from quire.contract.sampling_params import SamplingParams
from quire.contract.workers import LoadSpec
from tests.factories import CONFIGS, save_model
from worker_svc.device.cuda import CudaDevice
from worker_svc.steps.drafts import one_by_one

PROMPTS = [list(range(start, start + 20)) for start in (3, 30, 57, 84)]
ROOMY, TIGHT = 60, 9
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=14, seed=1),
    "sampled": SamplingParams(temperature=0.8, top_p=0.9, max_tokens=14, seed=1),
    "forks": SamplingParams(temperature=0.8, n=3, max_tokens=8, seed=1),
    "beams": SamplingParams(use_beam_search=True, n=2, temperature=0.0, max_tokens=8, seed=1),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model."""
    return save_model(tmp_path, CONFIGS["llama"](num_hidden_layers=2))


def outputs(model: Path, params: SamplingParams, **options: Any) -> tuple[Any, Engine]:
    """What the prompts get."""
    engine = Engine(
        model,
        spec=LoadSpec(str(model), LoadOptions(dtype="float32")),
        max_num_seqs=8,
        **{"num_blocks": ROOMY, **options},
    )
    return engine.run(PROMPTS, params).outputs, engine


def drafting_engine(model: Path, gpu: CudaDevice, num_blocks: int, draft_model: str = "") -> Engine:
    """An engine whose sequences have slots for drafts in some steps."""
    options = LoadOptions(dtype="float32", invariant=True, draft_model=draft_model)
    engine = Engine(
        model,
        spec=LoadSpec(str(model), options),
        max_num_seqs=8,
        num_blocks=num_blocks,
        device=gpu,
        max_steps_in_flight=2,
        max_draft_tokens=4,
    )
    engine.scheduler.speculation.plan = lambda ids, _: (  # type: ignore[method-assign]
        dict.fromkeys(ids, 4) if len(ids) % 2 == 0 else {}
    )
    return engine


@pytest.mark.parametrize("name", PARAMS)
def test_steps_ahead_of_their_results(gpu: CudaDevice, model: Path, name: str) -> None:
    expected, _ = outputs(model, PARAMS[name])
    found, _ = outputs(model, PARAMS[name], device=gpu, max_steps_in_flight=2)
    assert found == expected


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
def test_preemption(gpu: CudaDevice, model: Path, mode: PreemptionMode) -> None:
    expected, _ = outputs(model, PARAMS["sampled"])
    options = {"num_blocks": TIGHT, "mode": mode, "max_steps_in_flight": 2}
    found, engine = outputs(model, PARAMS["sampled"], device=gpu, **options)
    assert found == expected
    assert engine.scheduler.counters.preemptions > 0
    moved = engine.scheduler.counters.swapped_out_blocks
    assert moved > 0 if mode is PreemptionMode.SWAP else moved == 0


@pytest.mark.parametrize("name", ["greedy", "sampled", "forks"])
@pytest.mark.parametrize("num_blocks", [ROOMY, TIGHT])
def test_drafts_half_of_them_right(
    gpu: CudaDevice, model: Path, num_blocks: int, name: str
) -> None:
    expected, _ = outputs(model, PARAMS[name])
    texts = [[*PROMPTS[group_id - 1], *output] for (group_id, _), output in expected.items()]

    def draft(token_ids: npt.NDArray[np.int32], num_slots: int) -> npt.NDArray[np.int32]:
        known = token_ids.tolist()
        text = next(each for each in texts if each[: len(known)] == known)
        found = np.array(text[len(known) :][:num_slots], np.int32)
        found[1 + len(known) % 2 :] += 1  # wrong from the second or third on
        return found % 100

    engine = drafting_engine(model, gpu, num_blocks)
    engine.runner.mirror.drafter = one_by_one(draft)
    assert engine.run(PROMPTS, PARAMS[name]).outputs == expected
    drafts = engine.scheduler.speculation.counters
    assert 0 < drafts.accepted_tokens < drafts.draft_tokens


@pytest.mark.parametrize("name", ["greedy", "sampled", "forks"])
@pytest.mark.parametrize("num_blocks", [ROOMY, TIGHT])
def test_drafts_of_the_model_itself(
    gpu: CudaDevice, model: Path, num_blocks: int, name: str
) -> None:
    expected, _ = outputs(model, PARAMS[name])
    engine = drafting_engine(model, gpu, num_blocks, draft_model=str(model))
    assert engine.run(PROMPTS, PARAMS[name]).outputs == expected
    drafts = engine.scheduler.speculation.counters
    assert 0 < drafts.accepted_tokens <= drafts.draft_tokens
    assert (drafts.accepted_tokens == drafts.draft_tokens) == (name == "greedy")


def test_the_benchmark(gpu: CudaDevice, tmp_path: Path) -> None:
    config = {
        **LLAMA_3_8B,
        "vocab_size": 200,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
    bench = Bench(tmp_path, gpu, config, num_prompt_tokens=9, num_tokens=6)
    result = bench.measure(bench.engine(2), 2, copy_rate(gpu, 2**12))
    assert result.streams == 2
    assert min(result.tokens_per_s, result.step_ms, result.roof) > 0
