"""The worker on a GPU, emulated: the same tokens as on the CPU, in every way it takes steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.kv_quality import divergence
from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.sampling_params import SamplingParams
from quire.contract.workers import CacheSpec, LoadSpec
from tests.emu.conftest import needs_float8_caches
from tests.emu.emulated_device import EmulatedDevice, thread_of
from tests.emu.emulated_torch import EmulatedGraph
from tests.factories import CONFIGS, FALLBACKS, random_model, save_model
from tests.models.driver import Driver, load_runner
from tests.models.linked_ranks import run_ranks
from tests.models.test_against_transformers import reference_tokens
from worker_svc.device.cuda import CudaDevice
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.gpu_inputs import GpuInputs
from worker_svc.steps.runner import ModelRunner
from worker_svc.worker import Worker

PROMPTS = [[5, 17, 3, 99, 42], [7, 8], list(range(20, 60))]
NUM_TOKENS = 4
# Of a head size that the kernels on tensor cores serve.
FAST = {"head_dim": 64, "num_hidden_layers": 2}


def continuations(directory: Path, *, ahead: bool = False, **options: Any) -> list[list[int]]:
    """The greedy continuations of the prompts, by a runner with some options."""
    driver = Driver(load_runner(directory, **{"dtype": "float32", "num_blocks": 40, **options}))
    return driver.generate(PROMPTS, NUM_TOKENS, ahead=ahead)


def inputs_of(runner: ModelRunner) -> GpuInputs:
    assert isinstance(runner.inputs, GpuInputs)
    return runner.inputs


def assert_replayed(driver: Driver, count: int) -> None:
    """Graphs were replayed so often, where the graphs count it."""
    graphs = inputs_of(driver.runner).graphs
    sizes = [] if graphs is None else graphs._of_size.values()
    found = [each.graph for of_size in sizes for each in of_size.captured.values()]
    if all(isinstance(graph, EmulatedGraph) for graph in found):
        assert sum(graph.num_replays for graph in found) == count  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "opt"])
def test_greedy_tokens_equal_transformers(gpu: CudaDevice, tmp_path: Path, family: str) -> None:
    config = CONFIGS[family]()
    save_model(tmp_path, config)
    expected = [reference_tokens(config, prompt, NUM_TOKENS) for prompt in PROMPTS]
    assert continuations(tmp_path, device=gpu, max_num_seqs=4, ahead=True) == expected


@pytest.mark.parametrize("family", [*CONFIGS, *FALLBACKS])
def test_every_family(gpu: CudaDevice, tmp_path: Path, family: str) -> None:
    save_model(tmp_path, (CONFIGS | FALLBACKS)[family]())
    expected = continuations(tmp_path)
    assert continuations(tmp_path, device=gpu, max_num_seqs=4) == expected
    assert continuations(tmp_path, device=gpu, max_num_seqs=4, ahead=True) == expected


@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "deepseek_v3"])
def test_graphs_and_single_kernels_give_the_same_bits(
    gpu: CudaDevice, tmp_path: Path, family: str
) -> None:
    save_model(tmp_path, CONFIGS[family](**FAST))
    logits = []
    for eager in (True, False):
        runner = load_runner(
            tmp_path,
            dtype="bfloat16",
            device=gpu,
            num_blocks=60,
            max_num_seqs=4,
            enforce_eager=eager,
            invariant=True,
        )
        driver = Driver(runner)
        driver.generate([[3] * 200, [9] * 15, [4]], 3)
        # They crossed into another block, three in a graph of four; then two are left.
        driver.release(1)
        driver.step()
        logits.append(driver.logits)
        assert_replayed(driver, 0 if eager else 3)
    assert logits[0].keys() == logits[1].keys() == {0, 2}
    assert all(torch.equal(logits[0][i], logits[1][i]) for i in logits[0])


def test_half_precision_is_near_the_cpus(gpu: CudaDevice, tmp_path: Path) -> None:
    save_model(tmp_path, CONFIGS["llama"](**FAST))
    found = []
    for device in (None, gpu):
        driver = Driver(load_runner(tmp_path, dtype="bfloat16", num_blocks=40, device=device))
        driver.add(0, PROMPTS[2])
        driver.step()
        found.append(driver.logits[0])
    error = (found[0] - found[1]).square().mean().sqrt() / found[0].square().mean().sqrt()
    assert error < 0.02


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_invariant_layers_make_a_tokens_bits_its_own(
    gpu: CudaDevice, tmp_path: Path, dtype: str
) -> None:
    save_model(tmp_path, CONFIGS["llama"](**FAST))
    text = [(7 * i) % 101 + 5 for i in range(70)]
    runner = load_runner(
        tmp_path, dtype=dtype, device=gpu, num_blocks=60, max_num_seqs=4, invariant=True
    )

    def last_logits(*chunks: int, company: int = 0) -> torch.Tensor:
        """Logits after the text, computed in chunks, beside so many others."""
        driver = Driver(runner)
        driver.add(0, text)
        for index in range(company):
            driver.add(1 + index, text[: 9 * index + 2])
        for chunk in chunks:
            driver.step({0: chunk, **(dict.fromkeys(range(1, company + 1), 1))})
        runner.forget_sequences()
        return driver.logits[0]

    alone = last_logits(70)
    for chunks, company in (((69, 1), 0), ((30, 23, 17), 0), ((70,), 3), ((68, 1, 1), 2)):
        assert torch.equal(last_logits(*chunks, company=company), alone), (chunks, company)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["llama", "mixtral", "deepseek_v3"])
def test_invariant_ranks_give_the_bits_of_one(
    gpu: CudaDevice, tmp_path: Path, family: str, dtype: str
) -> None:
    save_model(tmp_path, CONFIGS[family](**FAST, intermediate_size=1536))

    def logits(parallel: ParallelGroup) -> torch.Tensor:
        runner = load_runner(
            tmp_path,
            dtype=dtype,
            device=gpu,
            num_blocks=40,
            max_num_seqs=4,
            enforce_eager=True,
            invariant=True,
            parallel=parallel,
        )
        driver = Driver(runner)
        driver.generate(PROMPTS, 2)
        return driver.logits[2].cpu()

    def rank_logits(parallel: ParallelGroup) -> torch.Tensor:
        with thread_of(gpu):
            return logits(parallel)

    alone = logits(ParallelGroup())
    assert all(torch.equal(each, alone) for each in run_ranks(2, rank_logits))


def test_float8_caches(gpu: CudaDevice, tmp_path: Path) -> None:
    needs_float8_caches(gpu)
    save_model(tmp_path, CONFIGS["llama"](**FAST))
    logits = {}
    for kv_cache_dtype, eager in (("auto", True), ("fp8", True), ("fp8", False)):
        runner = load_runner(
            tmp_path,
            dtype="bfloat16",
            device=gpu,
            num_blocks=20,
            max_num_seqs=2,
            enforce_eager=eager,
            kv_cache_dtype=kv_cache_dtype,
            swap_space_bytes=2**20,
        )
        driver = Driver(runner)
        driver.add(0, PROMPTS[2])
        driver.step()
        first = driver.logits[0]
        driver.swap(0)
        driver.step()
        driver.step()
        logits[kv_cache_dtype, eager] = first, driver.logits[0]
    own, single, graph = (torch.stack(each) for each in logits.values())
    assert torch.equal(single, graph)
    # As near as with keys and values that torch has rounded.
    assert 0 < divergence(own[:1], single[:1]) < 0.06
    scales = runner.cache_engine.caches.scales
    assert scales is not None
    for scale in (each.cpu() for layer in scales for each in layer):
        assert scale.shape == (2,)
        assert torch.equal(scale, scale.log2().round().exp2())
        assert (scale < 1).all()  # these keys and values are small


def test_a_steps_tokens_need_not_have_come_for_the_next(gpu: CudaDevice, tmp_path: Path) -> None:
    save_model(tmp_path, CONFIGS["llama"]())
    expected = continuations(tmp_path)
    driver = Driver(load_runner(tmp_path, dtype="float32", device=gpu, max_num_seqs=4))
    for index, prompt in enumerate(PROMPTS):
        driver.add(index, prompt)
    steps = [driver.start(), driver.start()]
    mirror = driver.runner.mirror
    assert (mirror.token_ids(0)[-2:] < 0).all(), "nothing has waited for them"
    driver.finish(steps.pop(0))
    # Another takes the row of one that is released while its token is on the way.
    driver.release(1)
    driver.add(3, PROMPTS[1])
    steps.append(driver.start())
    steps.append(driver.start())
    while steps:
        _ignoring_released(driver, steps.pop(0))
    assert driver.tokens[0][len(PROMPTS[0]) :] == expected[0]
    assert driver.tokens[3][len(PROMPTS[1]) :] == expected[1][:2]


def _ignoring_released(driver: Driver, step: Any) -> None:
    """Finish a step that may have sampled for sequences released since."""
    for sequence_id, token_id in zip(*_sampled(step), strict=True):
        tokens = driver.tokens.get(sequence_id)
        if tokens is not None:
            tokens[tokens.index(-1)] = token_id


def _sampled(step: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    outcome = step.result()
    return outcome.sequence_ids, outcome.token_ids


def test_more_sequences_than_there_were_rows_for(gpu: CudaDevice, tmp_path: Path) -> None:
    save_model(tmp_path, CONFIGS["llama"](num_hidden_layers=1))
    prompts = [[seed, seed + 1] for seed in range(5)]
    outputs = []
    for options in ({}, {"device": gpu, "max_num_seqs": 2}):
        driver = Driver(load_runner(tmp_path, dtype="float32", **options))
        driver.generate(prompts, 2)
        for sequence_id in (0, 2, 4):
            driver.release(sequence_id)
        driver.step()
        outputs.append(dict(driver.tokens))
    assert outputs[0] == outputs[1]
    assert_replayed(driver, 1)  # captured again, for tables that have moved


def test_rules_and_reports(gpu: CudaDevice, tmp_path: Path) -> None:
    save_model(tmp_path, CONFIGS["llama"]())
    params = [
        SamplingParams(temperature=0.0, seed=1, repetition_penalty=1.5, logprobs=3),
        SamplingParams(temperature=1.0, seed=7, presence_penalty=0.7, min_tokens=9),
        SamplingParams(temperature=0.0, seed=1, prompt_logprobs=2),
    ]
    found = []
    for options in ({}, {"device": gpu, "max_num_seqs": 4}):
        driver = Driver(load_runner(tmp_path, dtype="float32", **options))
        for index, each in enumerate(params):
            driver.add(index, PROMPTS[index], each)
        reports: list[Any] = []
        for _ in range(NUM_TOKENS):
            driver.step()
            reports.append((driver.logprobs, driver.prompt_logprobs))
        found.append((driver.tokens, reports))
    assert found[0][0] == found[1][0]
    for (cpu, cpu_prompt), (device, device_prompt) in zip(found[0][1], found[1][1], strict=True):
        assert cpu.keys() == device.keys()
        for index in cpu:
            assert cpu[index].token_ids == device[index].token_ids
            np.testing.assert_allclose(cpu[index].logprobs, device[index].logprobs, atol=1e-4)
        assert len(cpu_prompt) == len(device_prompt)


def swapped(tmp_path: Path, gpu: CudaDevice) -> list[int]:
    """Tokens of a sequence whose blocks are out and in again beside a step."""
    driver = Driver(
        load_runner(tmp_path, dtype="float32", device=gpu, max_num_seqs=4, swap_space_bytes=1 << 20)
    )
    driver.generate(PROMPTS, 1)
    driver.swap(2)
    for _ in range(NUM_TOKENS - 1):
        driver.step()
    return driver.tokens[2][len(PROMPTS[2]) :]


def test_a_sequence_that_fails_fails_alone(gpu: CudaDevice, tmp_path: Path) -> None:
    poison = 77

    model = random_model(CONFIGS["llama"](), 0)
    model.get_input_embeddings().weight.data[poison] = torch.nan
    model.save_pretrained(tmp_path)
    runner = load_runner(tmp_path, dtype="float32", device=gpu, max_num_seqs=4)
    driver = Driver(runner)
    driver.add(0, PROMPTS[0])
    driver.add(1, [poison, 4])
    steps = [driver.start(), driver.start(), driver.start()]
    outcomes = [step.result() for step in steps]
    assert [outcome.failed_sequence_ids for outcome in outcomes] == [(1,)] * 3
    assert [outcome.sequence_ids for outcome in outcomes] == [(0,)] * 3
    # By now it is known here too, and costs nothing any more.
    batch = driver.start().batch
    assert batch.failed_ids == (1,)
    assert batch.num_tokens == 1


def test_a_worker_over_its_life(emulated_gpu: EmulatedDevice, tmp_path: Path) -> None:
    save_model(tmp_path, CONFIGS["llama"]())
    worker = Worker(emulated_gpu)
    worker.start_thread()
    assert worker.describe().device == "cuda:0"
    worker.load_model(LoadSpec(str(tmp_path), LoadOptions(dtype="float32")), "tiny")
    options = CacheOptions(
        max_num_batched_tokens=64, max_num_seqs=4, gpu_memory_utilization=0.5, swap_space=2**-10
    )
    profile = worker.profile_cache(options)
    # Half of 1 GiB has room for all that sequences can fill.
    assert profile.num_blocks == 4 * 256 // 16
    assert worker.init_cache(CacheSpec(20, options)).block_us > 0
    runner = worker._runner
    assert runner is not None
    driver = Driver(runner)
    first = driver.generate(PROMPTS, 2)
    worker.reset()
    mirror = worker.mirror()
    assert not mirror.sequences
    assert mirror.blocks, "what blocks hold outlives the sequences"
    assert Driver(runner).generate(PROMPTS, 2) == first
