"""Seeds of requests that bring none."""

import random

from quire.contract.sampling_params import SamplingParams
from scheduler_svc.policy.admission import draw_seed


def test_a_drawn_seed_survives_a_reader_of_doubles() -> None:
    drawn = random.SystemRandom()
    seeds = {draw_seed(SamplingParams(), drawn) for _ in range(200)}
    assert len(seeds) == 200
    assert all(int(float(seed)) == seed for seed in seeds)
    assert draw_seed(SamplingParams(seed=2**64 - 1), drawn) == 2**64 - 1


def test_seeds_that_are_drawn_from_one_come_again() -> None:
    first, second = (
        [draw_seed(SamplingParams(), source) for _ in range(3)]
        for source in (random.Random(5), random.Random(5))
    )
    assert first == second
    assert len(set(first)) == 3
