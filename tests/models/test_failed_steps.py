"""A step fails, wherever that is: what is still reported of the cache is what it holds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.factories import llama_config, save_model
from tests.models.driver import Driver, load_runner
from worker_svc.steps.runner import ModelRunner

BLOCK_SIZE = 8
PROMPTS = [list(range(3, 3 + length)) for length in (21, 38, 12)]


class LostError(Exception):
    """What the tests raise in the midst of a step."""


def fail(*_: object, **__: object) -> None:
    raise LostError


def while_drafting(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.mirror, "drafter", fail)


def before_blocks_move(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.cache_engine.mover, "start", fail)


def in_a_layer(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    await_layer = runner.cache_engine.mover.await_layer

    def fail_in_the_second(layer: int) -> None:
        await_layer(layer)
        if layer == 1:
            raise LostError

    monkeypatch.setattr(runner.cache_engine.caches, "before_layer", fail_in_the_second)


def while_sampling(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.sampler, "sample", fail)


def held_by(runner: ModelRunner) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """The digests that are reported, of the cache and of the host, by block."""
    mirror = runner.read_mirror()
    return (
        {block.block_id: block.digest for block in mirror.blocks},
        {block.block_id: block.digest for block in mirror.host_blocks},
    )


def block_of(caches: list[torch.Tensor], block_id: int) -> bytes:
    return torch.stack([cache[block_id].clone() for cache in caches]).numpy().tobytes()


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize(
    "plant",
    [while_drafting, before_blocks_move, in_a_layer, while_sampling],
    ids=lambda f: f.__name__,
)
def test_digests_are_true_after_a_step_that_failed(
    plant: Callable[[ModelRunner, pytest.MonkeyPatch], None],
    swaps: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = load_runner(
        save_model(tmp_path, llama_config()),
        block_size=BLOCK_SIZE,
        num_blocks=64,
        swap_space_bytes=2**20,
        enforce_eager=True,
    )
    driver = Driver(runner)
    mover = runner.cache_engine.mover
    caches = [cache for layer in mover._layers for cache in layer]
    host_caches = [cache for layer in mover._host_layers for cache in layer]
    for number, prompt in enumerate(PROMPTS):
        driver.add(number, prompt)
    driver.step()
    driver.swap(0)
    driver.step()
    before, host_before = held_by(runner)
    assert len(before) >= sum(len(prompt) // BLOCK_SIZE for prompt in PROMPTS)
    live = {
        block
        for sequence in runner.mirror.sequences()
        for block in sequence.block_ids[: sequence.num_computed_tokens // BLOCK_SIZE]
    }
    truth = {digest: block_of(caches, block) for block, digest in before.items()}

    plant(runner, monkeypatch)
    if swaps:
        driver.swap(1)
    with pytest.raises(LostError):
        driver.start(draft_slots={1: 2})
    after, host_after = held_by(runner)
    for block, digest in after.items():
        assert block_of(caches, block) == truth[digest], "the block holds something else"
    for block, digest in host_after.items():
        assert block_of(host_caches, block) == truth[digest], "the host does"
    assert runner.mirror.sequences() == []
    assert live <= after.keys(), "where blocks came from they still are"
    assert host_after.items() <= host_before.items()
    runner.mirror.check_invariants()


def test_the_blocks_of_a_sequence_are_hashed_as_they_become_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(save_model(tmp_path, llama_config()), block_size=BLOCK_SIZE)
    hashed: list[int] = []
    record = runner.mirror.contents.record

    def count(block_ids: object, token_ids: torch.Tensor, first: int, salt: bytes) -> None:
        hashed.append(len(token_ids) // BLOCK_SIZE - first)
        record(block_ids, token_ids, first, salt)  # type: ignore[arg-type]

    monkeypatch.setattr(runner.mirror.contents, "record", count)
    driver = Driver(runner)
    driver.add(0, PROMPTS[1])
    for _ in range(20):
        driver.step()
    driver.release(0)
    driver.step()
    assert hashed == [4, 1, 1, 1], "the prompt's, then one by one, none at the end"
    assert len(held_by(runner)[0]) == 7
