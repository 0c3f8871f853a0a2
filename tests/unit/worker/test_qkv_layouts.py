"""Fused query, key and value: each rank reads the rows of its heads, whatever the stored order."""

import pytest
import torch

from worker_svc.layers.linear import HeadShare, QKVParallelLinear
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

HEAD_DIM = 8


class OneTensor:
    """A checkpoint of one matrix that counts the rows read of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.rows_read = 0

    def has(self, name: str) -> bool:
        return name == "qkv.weight"

    def read(self, name: str, shape: tuple[int, ...], part: tuple[range, ...]) -> torch.Tensor:
        assert self.has(name) and tuple(self._tensor.shape) == shape
        rows, columns = part
        self.rows_read += len(rows)
        return self._tensor[rows.start : rows.stop, columns.start : columns.stop]


def stored(order: list[str], num_heads: int, num_kv_heads: int) -> torch.Tensor:
    """Return a weight of which head "q1" answers input 1 with 1, "k1" with 101, "v1" with 201."""
    bases = {"q": 0, "k": 100, "v": 200}
    values = [float(bases[name[0]] + int(name[1:])) for name in order]
    assert len(order) == num_heads + 2 * num_kv_heads
    return torch.tensor(values).repeat_interleave(HEAD_DIM).unsqueeze(1).expand(-1, 4).clone()


LAYOUTS = {
    "stacked": (False, 4, 2, ["q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1"]),
    "by_head": (True, 2, 2, ["q0", "k0", "v0", "q1", "k1", "v1"]),
    "by_group": (True, 4, 2, ["q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1"]),
    "one_group": (True, 4, 1, ["q0", "q1", "q2", "q3", "k0", "v0"]),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2])
def test_every_rank_gets_its_heads_and_reads_no_more(name: str, size: int) -> None:
    grouped, num_heads, num_kv_heads, order = LAYOUTS[name]
    for rank in range(size):
        reader = OneTensor(stored(order, num_heads, num_kv_heads))
        heads = HeadShare(num_heads, num_kv_heads, HEAD_DIM, ParallelGroup(rank, size))
        qkv = QKVParallelLinear(
            Weights(reader, torch.float32, torch.device("cpu")),
            4,
            heads,
            ("qkv",),
            bias=False,
            grouped=grouped,
        )
        query, key, value = qkv.split_heads(torch.eye(4)[:1])
        assert query[0, :, 0].tolist() == list(heads.heads)
        assert key[0, :, 0].tolist() == [100 + head for head in heads.kv_heads]
        assert value[0, :, 0].tolist() == [200 + head for head in heads.kv_heads]
        assert reader.rows_read == (len(heads.heads) + 2 * len(heads.kv_heads)) * HEAD_DIM
