"""Sampling: which tokens stay, how often each is drawn, and on what alone a draw depends."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from worker_svc import ops

NUM_DRAWS = 100_000


@dataclass
class Rows:
    """Arguments of a call; a scalar stands for the same value in every row."""

    logits: Tensor
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: Tensor | int = 0
    sequence_index: int = 0
    position: Tensor | int = 0

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return token ids and whether each row was usable."""

        def column(value: Tensor | float, dtype: torch.dtype) -> Tensor:
            return torch.as_tensor(value, dtype=dtype).expand(len(self.logits)).contiguous()

        return ops.sample(
            self.logits,
            column(self.temperature, torch.float32),
            column(self.top_k, torch.int32),
            column(self.top_p, torch.float32),
            column(self.min_p, torch.float32),
            column(self.seed, torch.int64),
            column(self.sequence_index, torch.int32),
            column(self.position, torch.int64),
        )


def random_logits(rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def draws(logits: Tensor, num_draws: int = NUM_DRAWS, **params: Any) -> Tensor:
    """Many draws from one row [V], of 40 seeds and as many positions as it takes."""
    pairs = torch.arange(num_draws)
    rows = Rows(
        logits.expand(num_draws, -1).contiguous(),
        seed=pairs % 40 * (2**33 + 1),
        position=pairs // 40,
        **params,
    )
    token_ids, ok = rows.sample()
    assert ok.all()
    return token_ids


def assert_follows(token_ids: Tensor, probabilities: Tensor) -> None:
    """Chi-square test; the draws are fixed, so it passes always or never."""
    counts = torch.bincount(token_ids, minlength=len(probabilities)).double()
    assert (counts[probabilities == 0] == 0).all(), "a token that was filtered out was drawn"
    expected = probabilities * len(token_ids)
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = ((observed - wanted) ** 2 / wanted).sum().item()
    freedom = len(wanted) - 1
    # Mean plus five standard deviations of the chi-square distribution.
    assert statistic <= freedom + 5 * (2 * freedom) ** 0.5


def filtered(
    logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """Exact probabilities of a row [V] after temperature, min-p, top-k and top-p, in this order."""
    probabilities = (logits.double() / temperature).softmax(0)
    probabilities[probabilities < min_p * probabilities.max()] = 0
    order = sorted(range(len(logits)), key=lambda i: (-logits[i].item(), i))
    for token in order[top_k or len(order) :]:
        probabilities[token] = 0
    before = (probabilities / probabilities.sum())[order].cumsum(0)
    for rank, token in enumerate(order):
        if rank > 0 and before[rank - 1] >= top_p:
            probabilities[token] = 0
    return probabilities / probabilities.sum()


def test_philox_known_answers(isa: str) -> None:
    """The vectors that come with the paper's Random123 library."""
    ones, pi = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    for counter, key, words in (
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ones,) * 4, (ones,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (pi, (0xA4093822, 0x299F31D0), "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ):
        assert " ".join(f"{word:08x}" for word in ops.philox4x32(counter, key)) == words


@pytest.mark.parametrize("vocab_size", [1, 2, 63, 64, 65, 1000])
def test_greedy_takes_the_first_of_the_largest(isa: str, vocab_size: int) -> None:
    logits = random_logits(20, vocab_size)
    token_ids, ok = Rows(logits, temperature=0.0).sample()
    assert ok.all()
    assert torch.equal(token_ids, logits.argmax(1))
    tied = (logits / 3).round()
    token_ids, _ = Rows(tied, temperature=0.0).sample()
    assert token_ids.tolist() == [row.index(max(row)) for row in tied.tolist()]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"temperature": 2.5},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    ],
    ids=str,
)
def test_frequencies(cpu_isa: str, params: dict[str, Any]) -> None:
    logits = random_logits(1, 70, scale=1.5)[0]
    assert_follows(draws(logits, **params), filtered(logits, **params))


def test_chi_square_test_can_fail(cpu_isa: str) -> None:
    logits = random_logits(1, 70, scale=1.5)[0]
    with pytest.raises(AssertionError):
        assert_follows(draws(logits, temperature=1.0), filtered(logits, 1.1))


@pytest.mark.parametrize(
    ("params", "num_kept"),
    [
        ({"top_k": 63}, 63),
        ({"top_k": 64}, 64),
        ({"top_k": 65}, 64),
        ({"top_p": 0.5}, 32),
        ({"top_p": 0.0}, 1),
        ({"min_p": 1.0}, 64),
        ({"top_k": 40, "top_p": 0.5}, 20),
    ],
    ids=str,
)
def test_equal_tokens_are_kept_by_id(cpu_isa: str, params: dict[str, Any], num_kept: int) -> None:
    drawn = draws(torch.full((64,), -7.25), 4000, **params)
    assert set(drawn.tolist()) == set(range(num_kept))


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 37},
        {"top_p": 0.31},
        {"top_p": 0.995},
        {"min_p": 0.4},
        {"top_k": 50, "top_p": 0.7, "min_p": 0.3},
    ],
    ids=str,
)
def test_kept_set_is_exact(cpu_isa: str, params: dict[str, Any]) -> None:
    """Logits are flat enough for each token to be drawn sooner or later, save for a filter."""
    logits = (random_logits(1, 150, scale=0.4)[0] * 8).round() / 8
    probabilities = filtered(logits, 1.0, **params)
    kept = probabilities.nonzero().flatten()
    assert len(kept) < 150
    assert probabilities[kept].min() * NUM_DRAWS > 20
    assert set(draws(logits, **params).tolist()) == set(kept.tolist())


@pytest.mark.parametrize("vocab_size", [5, 300, 5000])
@pytest.mark.parametrize(
    "params",
    [{"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.3}, {"top_k": 4, "top_p": 0.7, "min_p": 0.1}],
    ids=str,
)
def test_only_kept_tokens_are_drawn(cpu_isa: str, vocab_size: int, params: dict[str, Any]) -> None:
    """With many ties, so that the order among equals matters."""
    logits = (random_logits(1, vocab_size)[0] * 2).round() / 2
    probabilities = filtered(logits, 1.0, **params)
    drawn = torch.bincount(draws(logits, 2000, **params), minlength=vocab_size) > 0
    assert not drawn[probabilities == 0].any()
    assert drawn[probabilities * 2000 > 20].all(), "a kept token is never drawn"


def test_minus_infinity_forbids_a_token(cpu_isa: str) -> None:
    logits = torch.zeros(40)
    logits[::2] = -torch.inf
    assert set(draws(logits).tolist()) == set(range(1, 40, 2))


@pytest.mark.parametrize("vocab_size", [3, 64, 67, 1001])
def test_a_draw_is_the_winner_of_a_race(isa: str, vocab_size: int) -> None:
    """Token i rings after an exponential time of rate p[i], from word i % 4 of Philox block i // 4.

    Pins where seed, sequence index and position go, so that a seed means the same in every build.
    """
    logits = random_logits(1, vocab_size)[0]
    cases = [(0, 0, 0), (1, 3, 1), (-1, 1, 2**32), (2**40 + 5, 2**31 - 1, 2**40 + 17)]
    for seed, sequence_index, position in cases:
        rows = Rows(logits[None], 0.8, 0, 0.9, 0.0, torch.tensor(seed), sequence_index, position)
        token_ids, _ = rows.sample()
        key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
        times = []
        for token, probability in enumerate(filtered(logits, 0.8, 0, 0.9).tolist()):
            counter = (token // 4, sequence_index, position & 0xFFFFFFFF, position >> 32)
            word = ops.philox4x32(counter, key)[token % 4]
            time = -math.log1p(-(word + 0.5) * 2.0**-32)
            times.append(time / probability if probability else math.inf)
        assert token_ids.item() == times.index(min(times))


def test_a_draw_depends_on_seed_sequence_and_position_alone(isa: str) -> None:
    logits = random_logits(1, 500)[0]
    seeds = torch.arange(50) * 7919
    positions = torch.arange(50) % 7
    rows = torch.nn.functional.pad(logits.expand(50, -1), (3, 5), value=99)[:, 3:-5]
    together, _ = Rows(rows, seed=seeds, position=positions).sample()
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    shuffled, _ = Rows(rows, seed=seeds[order], position=positions[order]).sample()
    assert torch.equal(shuffled, together[order])
    for row in (0, 31, 49):
        alone, _ = Rows(logits[None], seed=seeds[row], position=positions[row]).sample()
        assert alone[0] == together[row]
    right: dict[str, Any] = {"seed": seeds, "position": positions}
    for change in ({"seed": seeds + 1}, {"position": positions + 1}, {"sequence_index": 1}):
        other, _ = Rows(rows, **right | change).sample()
        assert not torch.equal(other, together)


@pytest.mark.pairwise
@pytest.mark.parametrize("vocab_size", [1, 5, 700, 4099])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"top_k": 4},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 50, "top_p": 0.95, "min_p": 0.01, "temperature": 0.7},
        {"top_p": 0.0},
        {"top_p": 0.999999, "temperature": 30.0},
        {"temperature": 0.02, "top_p": 0.9},
    ],
    ids=str,
)
@pytest.mark.parametrize("has_ties", [False, True])
def test_every_instruction_set_draws_the_same_tokens(
    vocab_size: int, params: dict[str, Any], has_ties: bool
) -> None:
    """The emulated GPU among them, where it is there, whose way to the cut is another."""
    logits = random_logits(24, vocab_size)
    if has_ties:
        logits = logits.round()
    logits[1::5, ::3] = -torch.inf
    logits[1::5, -1] = 0.5
    before, results = ops.isa(), []
    for name in ops.available_isas():
        ops.set_isa(name)
        rows = Rows(logits, position=torch.arange(24), **{"temperature": 1.0, **params})
        token_ids, ok = rows.sample()
        assert ok.all()
        results.append(token_ids)
    ops.set_isa(before)
    assert all(torch.equal(result, results[0]) for result in results)


# A few thousand tokens are several parts of a row on a GPU. Of rounded logits so many are equal
# that no few candidates for the end of a filter stand out.
CUTS: tuple[dict[str, float], ...] = (
    {"temperature": 0.0},
    {},
    {"min_p": 0.2},
    {"top_k": 40},
    {"top_k": 4000},
    {"top_p": 0.6},
    {"top_p": 0.999, "temperature": 4.0},
    {"top_k": 300, "top_p": 0.9},
    {"top_k": 3000, "top_p": 0.9, "temperature": 0.01},
    {"top_k": 8000, "top_p": 0.95, "min_p": 0.1},
    {"top_k": 8000, "min_p": 0.1},
)


def in_rows_of(size: int, logits: Tensor, **params: Any) -> Tensor:
    """Draw from rows [N, V], so many of them in a call. Where a row begins in memory differs."""
    shift = size % 4
    rows = torch.nn.functional.pad(logits, (shift, 3), value=99)[:, shift:-3]
    positions = torch.arange(len(logits))
    parts = zip(rows.split(size), positions.split(size), strict=True)
    return torch.cat([Rows(part, position=at, **params).sample()[0] for part, at in parts])


def on_the_cpu(logits: Tensor, **params: Any) -> Tensor:
    """Draw from rows [N, V] with the plainest kernels."""
    before = ops.isa()
    ops.set_isa("scalar")
    try:
        return Rows(logits, position=torch.arange(len(logits)), **params).sample()[0]
    finally:
        ops.set_isa(before)


@pytest.mark.pairwise
@pytest.mark.parametrize("vocab_size", [1025, 9001])
@pytest.mark.parametrize("params", CUTS, ids=str)
@pytest.mark.parametrize("has_ties", [False, True])
def test_tokens_do_not_depend_on_how_rows_are_cut(
    isa: str, vocab_size: int, params: dict[str, Any], has_ties: bool
) -> None:
    """A GPU cuts a row alone into several parts, and leaves each of many rows whole."""
    logits = random_logits(8, vocab_size)
    if has_ties:
        logits = (logits / 3).round()
    logits[1::5, ::3] = -torch.inf
    expected = on_the_cpu(logits, **params)
    for size in (1, 3, 8):
        assert torch.equal(in_rows_of(size, logits, **params), expected)


def test_unusable_rows_are_named_and_leave_the_others_alone(isa: str) -> None:
    logits = random_logits(6, 100)
    expected, _ = Rows(logits, position=torch.arange(6)).sample()
    spoilt = logits.clone()
    spoilt[1, 99] = torch.nan
    spoilt[3, 0] = torch.inf
    spoilt[4] = -torch.inf
    token_ids, ok = Rows(spoilt, position=torch.arange(6)).sample()
    assert ok.tolist() == [True, False, True, False, False, True]
    assert torch.equal(token_ids[ok], expected[ok])


def test_more_rows_than_a_launch_has(isa: str) -> None:
    logits = random_logits(258, 20)
    token_ids, ok = Rows(logits, position=torch.arange(258), top_k=9).sample()
    assert ok.all()
    alone, _ = Rows(logits[255:], position=torch.arange(255, 258), top_k=9).sample()
    assert torch.equal(token_ids[255:], alone)


@pytest.mark.parametrize("where", [0, 1023, 1024, 2999])
def test_one_logit_spoils_a_row(isa: str, where: int) -> None:
    """Whichever part of the row has it; large numbers and minus infinity do not."""
    logits = torch.full((4, 3000), -3.4e38)
    logits[:, 77] = 3.4e38
    logits[3, 76] = -torch.inf
    for row, value in enumerate((torch.nan, torch.inf, -torch.nan)):
        logits[row, where] = value
    token_ids, ok = Rows(logits, temperature=0.0).sample()
    assert ok.tolist() == [False, False, False, True]
    assert token_ids.tolist() == [0, 0, 0, 77]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temperature": -1.0}, r"temperature\[0\].*-1"),
        ({"temperature": float("nan")}, r"temperature\[0\].*nan"),
        ({"top_k": -1}, r"top_k\[0\].*-1"),
        ({"top_p": 1.5}, r"top_p\[0\].*1\.5"),
        ({"min_p": -0.5}, r"min_p\[0\].*-0\.5"),
        ({"logits": torch.zeros(2, 0)}, "logits.*at least one column"),
        ({"logits": torch.zeros(2, 3).half()}, "logits.*float32.*float16"),
        ({"logits": torch.zeros(2, 3).T}, "logits.*stride"),
    ],
    ids=str,
)
def test_bad_arguments(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Rows(**{"logits": torch.zeros(2, 3), **params}).sample()


@pytest.mark.parametrize(
    "name", ["temperature", "top_k", "top_p", "min_p", "seed", "sequence_index", "position"]
)
def test_columns_of_another_length_dtype_or_stride(name: str) -> None:
    floats, ints, longs = torch.ones(2), torch.ones(2).int(), torch.ones(2).long()
    right: dict[str, Any] = {
        "logits": torch.zeros(2, 3),
        **dict.fromkeys(("temperature", "top_p", "min_p"), floats),
        **dict.fromkeys(("top_k", "sequence_index"), ints),
        **dict.fromkeys(("seed", "position"), longs),
    }
    ops.sample(**right)
    column = right[name]
    for wrong in (column[:1], column[None], column.double(), column.repeat_interleave(2)[::2]):
        with pytest.raises(ValueError, match=f"^{name}: must be "):
            ops.sample(**right | {name: wrong})
