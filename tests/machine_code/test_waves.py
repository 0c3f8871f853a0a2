"""Figures that were published of the first attention kernels on an A100."""

import pytest

from tests.machine_code.occupancy import MULTIPROCESSORS
from tests.machine_code.waves import occupancy, one_pass_tokens, waves

A100 = MULTIPROCESSORS[80]
A100_MULTIPROCESSORS = 108


@pytest.mark.parametrize(
    ("num_seqs", "expected"), [(1, 32 / 108), (3, 96 / 108), (4, 128 / 216), (27, 1)]
)
def test_few_sequences_leave_a_device_idle(num_seqs: int, expected: float) -> None:
    """30 %, 88.9 % and 59 % of the device; 27 sequences of 32 heads are eight whole waves."""
    assert occupancy(waves(num_seqs, 32, 1, A100_MULTIPROCESSORS)) == pytest.approx(expected)


@pytest.mark.parametrize(("num_seqs", "percent"), [(1, "30"), (3, "89"), (4, "59")])
def test_shares_are_those_that_were_published(num_seqs: int, percent: str) -> None:
    assert f"{occupancy(waves(num_seqs, 32, 1, A100_MULTIPROCESSORS)):.0%}" == f"{percent}%"


def test_tiles_of_the_context_fill_it() -> None:
    """Of one sequence of 32 heads: 27 tiles are whole waves again."""
    shares = [occupancy(waves(1, 32, tiles, A100_MULTIPROCESSORS)) for tiles in (1, 3, 27)]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_a_context_of_27_thousand_tokens_fits_an_a100() -> None:
    assert A100.shared_bytes_of_block == 163 << 10
    longest = one_pass_tokens(A100.shared_bytes_of_block)
    assert longest // 1000 == 27
    assert 6 * longest <= A100.shared_bytes_of_block < 6 * (longest + 1)
