"""Seeds of requests that bring none."""

from quire.contract.sampling_params import SamplingParams
from scheduler_svc.policy.admission import draw_seed


def test_a_drawn_seed_survives_a_reader_of_doubles() -> None:
    seeds = {draw_seed(SamplingParams()) for _ in range(200)}
    assert len(seeds) == 200
    assert all(int(float(seed)) == seed for seed in seeds)
    assert draw_seed(SamplingParams(seed=2**64 - 1)) == 2**64 - 1
