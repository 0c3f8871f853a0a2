"""Blocks of a GPU's cache as bytes: what is read is in the cache, and what is written is read."""

from pathlib import Path

import pytest
import torch

from tests.factories import CONFIGS, save_model
from tests.models.driver import Driver, load_runner
from worker_svc.cache import block_bytes
from worker_svc.cache.block_bytes import DeviceBlockBytes
from worker_svc.device.cuda import CudaDevice


@pytest.mark.parametrize("family", ["llama", "deepseek_v2"])
def test_blocks_are_read_and_written(
    gpu: CudaDevice, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_bytes, "STAGING_BYTES", 1)  # one block at a time
    save_model(tmp_path, CONFIGS[family]())
    runner = load_runner(tmp_path, dtype="bfloat16", device=gpu, max_num_seqs=2, num_blocks=12)
    Driver(runner).generate([list(range(20, 60))], 2)
    blocks, caches = runner.cache_engine.block_bytes, runner.cache_engine.caches
    assert isinstance(blocks, DeviceBlockBytes)
    held = {block_id: blocks.read(block_id) for block_id in range(12)}
    for block_id, contents in held.items():
        parts = [
            cache[block_id].cpu().contiguous().view(torch.uint8).numpy().tobytes()
            for layer in caches.stored
            for cache in layer
        ]
        assert contents == b"".join(parts)
        assert len(contents) == blocks.block_bytes
    used = [block_id for block_id, contents in held.items() if any(contents)]
    unused = [block_id for block_id in held if block_id not in used]
    assert len(used) >= 2
    blocks.write(unused[:2], [held[each] for each in used[:2]])
    assert [blocks.read(each) for each in unused[:2]] == [held[each] for each in used[:2]]
    assert [blocks.read(each) for each in used] == [held[each] for each in used]
