"""Covers of pairs: complete, and smaller than the product."""

import itertools

import pytest

from tests.depth import pairwise


def product(**parameters: int) -> list[dict[str, str]]:
    """Return every combination of so many values of each parameter."""
    values = itertools.product(*(range(count) for count in parameters.values()))
    return [dict(zip(parameters, map(str, each), strict=True)) for each in values]


@pytest.mark.parametrize(
    "parameters", [{"a": 3}, {"a": 3, "b": 4}, {"a": 3, "b": 5, "c": 2}, dict.fromkeys("abcd", 4)]
)
def test_every_pair_of_values_meets(parameters: dict[str, int]) -> None:
    cases = product(**parameters)
    chosen = [cases[position] for position in pairwise(cases)]
    for (a, num_a), (b, num_b) in itertools.combinations(parameters.items(), 2):
        assert len({(case[a], case[b]) for case in chosen}) == num_a * num_b
    if len(parameters) < 3:
        assert len(chosen) == len(cases)
    else:
        assert len(chosen) < len(cases) * 0.6


def test_cases_that_do_not_exist_are_not_missed() -> None:
    cases = [case for case in product(a=3, b=3, c=3) if case["a"] != case["b"]]
    chosen = [cases[position] for position in pairwise(cases)]
    assert {(case["a"], case["b"]) for case in chosen} == {(case["a"], case["b"]) for case in cases}
