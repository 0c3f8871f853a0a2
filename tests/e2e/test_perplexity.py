"""What ways to hold a trained model cost in quality stays within bounds."""

import pytest

from bench.perplexity import BOUNDS, ratios
from launch.packaged_models import SMOLLM2, fetch


# The text in full is of `python -m bench.perplexity`; of a short one a ratio varies by about 1 %.
@pytest.mark.timeout(600)
def test_a_short_text_is_predicted_as_well_as_in_float32() -> None:
    names = ("bfloat16", "int8 cache", "Q8_0")
    found = {name: ratio for name, _, ratio in ratios(fetch(SMOLLM2), names, 500)}
    assert set(found) == {"float32", *names}
    for name in names:
        assert 0.98 <= found[name] <= BOUNDS[name], found
