"""What a model is said to take, against what it takes once it is loaded."""

from pathlib import Path

import pytest

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from tests.factories import save_model
from tests.variants import VARIANTS
from worker_svc.cache.engine import block_bytes
from worker_svc.device.cpu import CpuDevice
from worker_svc.loading.loader import load_model
from worker_svc.loading.model_size import size_of
from worker_svc.parallel.group import ParallelGroup

SIZES = (1, 2, 3, 4, 6, 8)
BLOCK_SIZE = 16


@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_what_loading_finds(name: str, tmp_path: Path) -> None:
    save_model(tmp_path, VARIANTS[name])
    options = LoadOptions()
    size = size_of(tmp_path, options, CpuDevice())

    def load(num_ranks: int) -> bool:
        try:
            load_model(LoadSpec(str(tmp_path), options), "", ParallelGroup(0, num_ranks))
        except ModelLoadError as error:
            assert "tensor_parallel_size" in str(error) or num_ranks == 1, error
            return False
        return True

    assert [each for each in SIZES if each in size.ranks] == [each for each in SIZES if load(each)]
    loaded = load_model(LoadSpec(str(tmp_path), options), "", ParallelGroup())
    assert size.token_bytes * BLOCK_SIZE == block_bytes(loaded, BLOCK_SIZE)
    assert size.architecture == loaded.info.architecture
    assert size.max_model_len == loaded.info.max_model_len
    assert loaded.weight_bytes == pytest.approx(size.weight_bytes["none"], rel=0.25)
