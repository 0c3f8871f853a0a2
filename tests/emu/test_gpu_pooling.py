"""Vectors from a worker on an emulated GPU: near the CPU's, and the same bits beside graphs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from quire.contract.pooling_params import PoolingParams
from tests.factories import CONFIGS, FALLBACKS, save_model
from tests.models.driver import GREEDY, Driver, load_runner
from tests.models.test_pooling import make_prompt, read
from worker_svc.device.cuda import CudaDevice
from worker_svc.sampling.pooling import normalize

TARGET = 1000
LENGTH = 20
PROMPT = make_prompt(LENGTH)
SCALED, RAW = PoolingParams(), PoolingParams(normalize=False)
# Of a head size that the kernels on tensor cores serve.
FAST = {"head_dim": 64, "num_hidden_layers": 2}


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", *FALLBACKS])
def test_vectors_are_near_the_cpus(gpu: CudaDevice, tmp_path: Path, family: str) -> None:
    save_model(tmp_path, (CONFIGS | FALLBACKS)[family]())
    found = []
    for device in (None, gpu):
        driver = Driver(load_runner(tmp_path, dtype="float32", num_blocks=40, device=device))
        driver.add(0, PROMPT, pooling=SCALED)
        driver.add(1, PROMPT[:1], pooling=RAW)
        driver.step()
        found.append([read(driver.vectors[each]) for each in (0, 1)])
    for ours, expected in zip(*found, strict=True):
        assert torch.allclose(ours, expected, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize("ahead", [False, True])
def test_same_bits_beside_graphs_and_company_keeps_its_tokens(
    gpu: CudaDevice, tmp_path: Path, ahead: bool
) -> None:
    save_model(tmp_path, CONFIGS["llama"](**FAST))
    options = {"dtype": "bfloat16", "device": gpu, "num_blocks": 60, "invariant": True}
    driver = Driver(load_runner(tmp_path, **options, max_num_seqs=4))
    driver.add(TARGET, PROMPT, pooling=SCALED)
    driver.step()
    expected = driver.vectors[TARGET]
    prompts = [[5, 17, 3, 99, 42], [7, 8]]
    alone = Driver(load_runner(tmp_path, **options, max_num_seqs=4)).generate(prompts, 5)

    driver = Driver(load_runner(tmp_path, **options, max_num_seqs=4))
    for sequence_id, prompt in enumerate(prompts):
        driver.add(sequence_id, prompt, GREEDY)
    vectors, under_way = [], []
    # A graph between the steps that compute chunks, whose last one is of one token.
    for count in (0, 12, 0, LENGTH - 13, 1):
        if count == 12:
            driver.add(TARGET, PROMPT, pooling=SCALED)
        scheduled = {each: driver.num_left(each) for each in (0, 1)}
        under_way.append(driver.start({**scheduled, **({TARGET: count} if count else {})}))
        if not ahead or len(under_way) > 1:
            driver.finish(under_way.pop(0))
            vectors.append(driver.vectors)
    for step in under_way:
        driver.finish(step)
        vectors.append(driver.vectors)
    assert vectors == [{}, {}, {}, {}, {TARGET: expected}]
    found = [driver.tokens[each][len(prompt) :] for each, prompt in enumerate(prompts)]
    assert found == alone


def test_the_length_has_the_bits_of_the_cpus(gpu: CudaDevice) -> None:
    vectors = np.random.default_rng(1).standard_normal((5, 77)).astype(np.float32)
    which = np.array([True, True, False, True, False])
    placed = gpu.place({"vectors": vectors, "which": which})
    found = gpu.fetch([normalize(placed["vectors"], placed["which"])]).wait()[0]
    expected = normalize(torch.from_numpy(vectors), torch.from_numpy(which))
    assert np.array_equal(found, expected.numpy())
