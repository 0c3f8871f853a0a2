"""Moving blocks beside the computation: the order of moves, and who waits for which layer."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch

from tests.factories import CONFIGS, save_model
from tests.models.driver import Driver, load_runner
from worker_svc import ops
from worker_svc.arrays import IntArray
from worker_svc.cache.mover_cpu import BlockMover
from worker_svc.layers.attention import KVCaches

NUM_LAYERS = 3
NOTHING = np.empty((0, 2), np.int64)


def make_caches(num_blocks: int, first: int) -> KVCaches:
    """Caches of one head of one element, whose blocks are filled with `first`, `first` + 1 ..."""

    def cache() -> torch.Tensor:
        return torch.arange(first, first + num_blocks).float().view(-1, 1, 1, 1).repeat(1, 1, 8, 8)

    return KVCaches([(cache(), cache()) for _ in range(NUM_LAYERS)])


def contents(caches: KVCaches) -> list[list[int]]:
    """What each block of each layer's keys and values is filled with."""
    return [cache[:, 0, 0, 0].int().tolist() for layer in caches.stored for cache in layer]


def pairs(*each: tuple[int, int]) -> IntArray:
    return np.array(each, np.int64)


def test_blocks_go_out_before_others_come_in_before_copies() -> None:
    caches, host_caches = make_caches(4, first=10), make_caches(3, first=20)
    mover = BlockMover(caches, host_caches)
    # Host block 0 is written, then read; block 1 is read, then written, then read.
    mover.start(pairs((1, 0), (2, 1)), pairs((0, 3), (2, 1)), pairs((1, 2)))
    mover.finish()
    assert contents(host_caches) == [[11, 12, 22]] * 2 * NUM_LAYERS
    assert contents(caches) == [[10, 22, 22, 11]] * 2 * NUM_LAYERS


def test_each_layer_waits_for_its_own_move_only(monkeypatch: pytest.MonkeyPatch) -> None:
    caches, host_caches = make_caches(2, first=10), make_caches(2, first=20)
    mover = BlockMover(caches, host_caches)
    go_on, swap_blocks = Event(), ops.swap_blocks

    def held_up(source: torch.Tensor, destination: torch.Tensor, mapping: torch.Tensor) -> None:
        if all(source is not cache for cache in caches.stored[0]):
            assert go_on.wait(timeout=60)
        swap_blocks(source, destination, mapping)

    monkeypatch.setattr(ops, "swap_blocks", held_up)
    mover.start(pairs((0, 1)), NOTHING, NOTHING)
    mover.await_layer(0)
    assert contents(host_caches)[0] == [20, 10]
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(mover.await_layer, 1)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.05)
        go_on.set()
        waiting.result(timeout=60)
    assert contents(host_caches)[1] == [20, 10]
    mover.finish()
    assert contents(host_caches) == [[20, 10]] * 2 * NUM_LAYERS


def test_a_move_that_fails_is_known_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    mover = BlockMover(make_caches(2, first=10), make_caches(2, first=20))

    def fail(*_: torch.Tensor) -> None:
        raise RuntimeError("no such memory")

    monkeypatch.setattr(ops, "swap_blocks", fail)
    mover.start(pairs((0, 1)), NOTHING, NOTHING)
    # All of them: what still ran behind the test would call the next one's `swap_blocks`.
    for layer in range(NUM_LAYERS):
        with pytest.raises(RuntimeError, match="no such memory"):
            mover.await_layer(layer)
    with pytest.raises(RuntimeError, match="no such memory"):
        mover.finish()


def test_rows_that_hold_keys_and_values_move_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def latent(num_blocks: int, first: int) -> KVCaches:
        own = make_caches(num_blocks, first)
        return KVCaches([layer[:1] for layer in own.stored], value_size=4)

    caches, host_caches = latent(4, first=10), latent(3, first=20)
    swaps, swap_blocks = [], ops.swap_blocks

    def counted(*arguments: torch.Tensor) -> None:
        swaps.append(arguments)
        swap_blocks(*arguments)

    monkeypatch.setattr(ops, "swap_blocks", counted)
    mover = BlockMover(caches, host_caches)
    mover.start(pairs((1, 0), (2, 1)), NOTHING, pairs((1, 2)))
    mover.finish()
    mover.start(NOTHING, NOTHING, pairs((0, 3)))
    assert len(swaps) == NUM_LAYERS
    assert contents(host_caches) == [[11, 12, 22]] * NUM_LAYERS
    assert contents(caches) == [[10, 11, 11, 10]] * NUM_LAYERS
    layer = caches.layer(1)
    assert layer.values.shape == (4, 1, 8, 4)
    assert layer.values.data_ptr() == layer.keys.data_ptr()


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom", "deepseek_v2"])
def test_a_model_reads_no_layer_before_its_blocks_are_back(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence goes out and comes back to other blocks, with moves as late as they can be."""
    save_model(tmp_path, CONFIGS[family]())
    driver = Driver(load_runner(tmp_path, num_blocks=40, swap_space_bytes=1 << 22))
    prompt = list(range(3, 40))
    driver.add(0, prompt)
    driver.step()
    expected = driver.step()[0], driver.logits[0].clone()

    driver.release(0)
    driver.add(1, prompt)
    driver.step()
    swap_blocks, awaited = (
        ops.swap_blocks,
        [Event() for _ in driver.runner.cache_engine.caches.stored],
    )
    mover = driver.runner.cache_engine.mover

    def late(source: torch.Tensor, destination: torch.Tensor, mapping: torch.Tensor) -> None:
        for layer, caches in enumerate(driver.runner.cache_engine.caches.stored):
            if destination is caches[0]:
                # Until the model asks for this layer; if it never does, it reads what was there.
                awaited[layer].wait(timeout=5)
        swap_blocks(source, destination, mapping)

    def await_layer(layer: int) -> None:
        awaited[layer].set()
        mover.await_layer(layer)

    monkeypatch.setattr(ops, "swap_blocks", late)
    driver.runner.cache_engine.caches.before_layer = await_layer
    driver.swap(1)
    assert driver.step()[1] == expected[0]
    assert torch.equal(driver.logits[1], expected[1])
    assert all(event.is_set() for event in awaited)
