"""Cost models: what is fitted, computed, written and refused."""

import random
from pathlib import Path

import pytest

from quire.contract.errors import ConfigError
from simulator.cost_model import CostModel, StepShape, load, save
from simulator.fit import MeasuredStep, fit, fit_error
from simulator.roofline import H100_TIMES_8, LLAMA_405B_FP8, cache_blocks, roofline

KNOWN = CostModel(
    "known", "made up", base_us=900, token_us=12, sequence_us=7, context_us=0.05, pair_us=0.002
)


def random_shapes(seed: int, count: int = 200) -> list[StepShape]:
    rng = random.Random(seed)
    shapes = []
    for _ in range(count):
        num_sequences = rng.randint(1, 64)
        chunk = rng.choice([0, 0, rng.randint(1, 1000)])
        context = num_sequences * rng.randint(1, 900)
        shapes.append(StepShape(num_sequences + chunk, num_sequences, context, chunk * chunk // 2))
    return shapes


def test_a_fit_recovers_known_prices() -> None:
    steps = [MeasuredStep(shape, KNOWN.step_us(shape)) for shape in random_shapes(1)]
    fitted = fit("fitted", "test", steps)
    for name, price in KNOWN.prices.items():
        if name in ("base_us", "token_us", "sequence_us", "context_us", "pair_us"):
            assert fitted.prices[name] == pytest.approx(price, rel=1e-6)
    assert fit_error(fitted, steps).p90 < 1e-9


def test_a_fit_of_noisy_steps_is_as_good_as_the_noise() -> None:
    rng = random.Random(2)
    steps = [
        MeasuredStep(shape, KNOWN.step_us(shape) * rng.uniform(0.9, 1.1))
        for shape in random_shapes(2, 400)
    ]
    error = fit_error(fit("fitted", "test", steps[::2]), steps[1::2])
    assert 0.03 < error.median < 0.07
    assert abs(error.bias) < 0.02


def test_a_price_that_would_be_negative_is_zero_and_the_others_fit_without_it() -> None:
    # Here a larger context makes steps faster, which no machine does.
    steps = [
        MeasuredStep(shape, KNOWN.step_us(shape) - 0.06 * shape.num_context_tokens)
        for shape in random_shapes(3)
        if shape.num_context_tokens < 10_000
    ]
    fitted = fit("fitted", "test", steps)
    assert fitted.context_us == 0
    assert fitted.base_us > 0
    assert all(price >= 0 for price in fitted.prices.values())


def test_weights_are_a_floor_that_tokens_rise_above() -> None:
    model = CostModel("floor", "test", base_us=100, weights_us=1000, token_us=10)
    assert model.step_us(StepShape(1, 1, 1)) == model.step_us(StepShape(100, 1, 1)) == 1100
    assert model.step_us(StepShape(200, 1, 1)) == 2100


def test_the_computed_model_is_near_what_such_machines_do() -> None:
    model = roofline(LLAMA_405B_FP8, H100_TIMES_8, 32)
    decode_ms = model.step_us(StepShape(100, 100, 200_000)) / 1e3
    assert 25 < decode_ms < 40
    assert 250_000 < 32 * cache_blocks(LLAMA_405B_FP8, H100_TIMES_8, 32, 80e9) < 400_000


def test_a_cost_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(KNOWN, tmp_path / "model.json")
    assert load(tmp_path / "model.json") == KNOWN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("[]", "must be an object with fields among"),
        ('{"name": "x", "source": "y"}', "base_us: must be given"),
        ('{"name": "x", "source": "y", "base_us": "1"}', "base_us: must be a number, got '1'"),
        ('{"name": "x", "source": "y", "base_us": -1}', "base_us: must be at least 0, got -1"),
        (
            '{"name": "x", "source": "y", "base_us": 1, "speed": 2}',
            "must be an object with fields among",
        ),
    ],
)
def test_a_broken_file_is_refused_in_a_line_with_the_reason(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(ConfigError, match=message.replace("[", "\\[")):
        load(tmp_path / "model.json")
