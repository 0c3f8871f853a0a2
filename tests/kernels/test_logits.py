"""What changes logits before sampling, and log-probabilities after it, against torch's."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels.logits_oracle import penalise, token_logprobs
from worker_svc import ops

NOT_A_TOKEN = 2**30
# Repetition, frequency and presence penalties.
PENALTIES = [
    (1.0, 0.0, 0.0),
    (1.3, 0.0, 0.0),
    (0.7, 0.3, 0.0),
    (1.0, 0.7, 0.0),
    (1.0, 0.0, -1.1),
    (1.7, -0.3, 1.9),
]


def random_logits(rows: int, vocab_size: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def column(values: list[Any], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("vocab_size", [3, 60, 8192, 20_000])
@pytest.mark.parametrize("length", [1, 40, 700])
def test_penalties_have_the_bits_of_torchs(isa: str, vocab_size: int, length: int) -> None:
    """Rows of every penalty, most of their prompt and of their output, and of half a prompt."""
    rng = np.random.default_rng(length)
    rows = [(penalty, share) for penalty in PENALTIES for share in (0.0, 0.4, 1.0)]
    # Some tokens come often, among them the first and the last.
    token_ids = np.minimum(rng.geometric(0.01, (len(rows), length)) - 1, vocab_size - 1)
    token_ids[:, ::7] = rng.integers(vocab_size, size=token_ids[:, ::7].shape)
    logits = random_logits(len(rows), vocab_size)
    logits[:, 1::5] = -torch.inf
    logits[:, 2::11] = 0
    expected = logits.clone()
    num_prompt_tokens, num_tokens = [], []
    for row, ((repetition, frequency, presence), share) in enumerate(rows):
        num_tokens.append(max(1, length - row))
        num_prompt_tokens.append(int(share * num_tokens[-1]))
        known = token_ids[row, : num_tokens[-1]].astype(np.int32)
        penalise(expected[row], known, num_prompt_tokens[-1], repetition, frequency, presence)
        token_ids[row, num_tokens[-1] :] = NOT_A_TOKEN
    wide = torch.nn.functional.pad(logits, (3, 2), value=7.0)
    ops.apply_penalties(
        wide[:, 3:-2],
        torch.nn.functional.pad(torch.from_numpy(token_ids).int(), (0, 5))[:, :length],
        column(num_prompt_tokens, torch.int32),
        column(num_tokens, torch.int32),
        *(column(list(each), torch.float32) for each in zip(*(p for p, _ in rows), strict=True)),
    )
    assert torch.equal(wide[:, 3:-2], expected)
    assert not torch.equal(expected, logits)
    assert (wide[:, :3] == 7).all()
    assert (wide[:, -2:] == 7).all()


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 255, 256, 1000])
def test_mask_forbids_where_a_bit_is_zero(isa: str, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    rows, words = 5, -(-vocab_size // 32)
    bits = rng.integers(2, size=(rows, words * 32)).astype(bool)
    bits[1], bits[2] = True, False
    bitmask = torch.from_numpy(np.packbits(bits, 1, "little").view(np.int32))
    wide_mask = torch.nn.functional.pad(bitmask, (1, 2))[:, 1:-2]
    logits = random_logits(rows, vocab_size)
    allowed = torch.from_numpy(bits[:, :vocab_size])
    expected = logits.masked_fill(~allowed, -torch.inf)
    wide = torch.nn.functional.pad(logits, (2, 1), value=7.0)
    ops.apply_token_mask(wide[:, 2:-1], wide_mask)
    assert torch.equal(wide[:, 2:-1], expected)
    assert (wide[:, :2] == 7).all()
    assert (wide[:, -1:] == 7).all()


def tied(logits: Tensor) -> Tensor:
    """Many equals, both zeros among them, and tokens that are forbidden."""
    logits = logits.round()
    logits[::2, ::3] = -torch.inf
    logits[:, 0] = 0.0
    logits[:, -1] = -0.0
    return logits


@pytest.mark.pairwise
@pytest.mark.parametrize("vocab_size", [1, 2, 300, 4099])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 300])
@pytest.mark.parametrize("has_ties", [False, True])
def test_top_logprobs(isa: str, vocab_size: int, num_top: int, has_ties: bool) -> None:
    rows = 6
    logits = random_logits(rows, vocab_size)
    if has_ties:
        logits = tied(logits)
    token_ids = torch.arange(rows) * 977 % vocab_size
    wide = torch.nn.functional.pad(logits, (3, 5), value=99)[:, 3:-5]
    logprobs, ranks, best, best_logprobs = ops.top_logprobs(wide, token_ids, num_top)
    assert best.shape == best_logprobs.shape == (rows, min(num_top, vocab_size))
    for row in range(rows):
        wanted = token_logprobs(logits[row], int(token_ids[row]), num_top)
        assert ranks[row] == wanted.sampled_rank
        assert tuple(best[row].tolist()) == wanted.token_ids[1:]
        actual = torch.cat([logprobs[row : row + 1], best_logprobs[row]])
        # Both are float64 rounded once; where the two are next to a half they may part.
        torch.testing.assert_close(actual, torch.tensor(wanted.logprobs), rtol=1.3e-7, atol=1e-9)


@pytest.mark.pairwise
@pytest.mark.parametrize(("vocab_size", "num_top"), [(1, 1), (50, 50), (4099, 7), (128_256, 20)])
@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_every_instruction_set_finds_the_same_logprobs(
    vocab_size: int, num_top: int, has_ties: bool, scale: float
) -> None:
    logits = scale * random_logits(3, vocab_size)
    if has_ties:
        logits = tied(logits)
    token_ids = torch.arange(3) * 31 % vocab_size
    before, results = ops.isa(), []
    for name in ops.available_isas():
        ops.set_isa(name)
        results.append(ops.top_logprobs(logits, token_ids, num_top))
    ops.set_isa(before)
    for result in results:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_a_row_has_its_logprobs_in_every_company(isa: str) -> None:
    logits = random_logits(9, 700)
    token_ids = torch.arange(9)
    together = ops.top_logprobs(logits, token_ids, 5)
    for row in (0, 4, 8):
        alone = ops.top_logprobs(logits[row : row + 1], token_ids[row : row + 1], 5)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, together, strict=True))


def test_a_certain_token_and_almost_impossible_ones(isa: str) -> None:
    logits = torch.full((1, 1000), -200.0)
    logits[0, 500] = 100.0
    logprobs, ranks, best, best_logprobs = ops.top_logprobs(logits, torch.tensor([3]), 2)
    assert (logprobs.item(), ranks.item()) == (-300.0, 2)
    assert best.tolist() == [[500, 0]]
    assert best_logprobs.tolist() == [[0.0, -300.0]]


def test_unusable_rows_are_not_a_number_and_leave_the_others_alone(isa: str) -> None:
    logits = random_logits(6, 100)
    token_ids = torch.arange(6)
    expected = ops.top_logprobs(logits, token_ids, 4)
    logits[1, 99] = torch.nan
    logits[3, 0] = torch.inf
    logits[4] = -torch.inf
    found = ops.top_logprobs(logits, token_ids, 4)
    usable = [0, 2, 5]
    assert all(torch.equal(a[usable], b[usable]) for a, b in zip(found, expected, strict=True))
    for row in (1, 3, 4):
        assert found[0][row].isnan()
        assert found[1][row] == 1
        assert found[2][row].tolist() == [0] * 4
        assert found[3][row].isnan().all()


def penalty_arguments() -> dict[str, Any]:
    """A call that is right."""
    return {
        "logits": torch.zeros(2, 7),
        "token_ids": torch.tensor([[0, 6, 9], [1, 2, 3]]).int(),
        "num_prompt_tokens": torch.tensor([1, 3]).int(),
        "num_tokens": torch.tensor([2, 3]).int(),
        "repetition_penalty": torch.tensor([1.0, 2.0]),
        "frequency_penalty": torch.tensor([0.0, -2.0]),
        "presence_penalty": torch.tensor([0.5, 0.0]),
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logits": torch.zeros(2, 7).half()}, "^logits: must be float32, got float16"),
        ({"logits": torch.zeros(2, 0)}, "^logits: must have at least one column"),
        ({"token_ids": torch.zeros(2, 3)}, "^token_ids: must be int32"),
        ({"token_ids": torch.zeros(3, 3).int()}, "^token_ids: must be .*2.*3"),
        ({"token_ids": torch.zeros(3, 2).int().T}, "^token_ids: must have stride 1"),
        ({"token_ids": torch.tensor([[0, 7, 9], [1, 2, 3]]).int()}, r"^token_ids\[0\]\[1\].*7.*7"),
        ({"token_ids": torch.tensor([[0, 1, 9], [1, 2, -1]]).int()}, r"^token_ids\[1\]\[2\].*-1"),
        ({"num_tokens": torch.tensor([2, 4]).int()}, r"^num_tokens\[1\].*4"),
        ({"num_tokens": torch.tensor([-1, 3]).int()}, r"^num_tokens\[0\].*-1"),
        ({"num_prompt_tokens": torch.tensor([-1, 3]).int()}, r"^num_prompt_tokens\[0\].*-1"),
        ({"num_prompt_tokens": torch.tensor([1, 3])}, "^num_prompt_tokens: must be int32"),
        ({"repetition_penalty": torch.tensor([1.0, 0.0])}, r"^repetition_penalty\[1\].*0"),
        ({"repetition_penalty": torch.ones(3)}, "^repetition_penalty: must be"),
        ({"frequency_penalty": torch.tensor([torch.nan, 0.0])}, r"^frequency_penalty\[0\].*nan"),
        ({"presence_penalty": torch.tensor([0.0, torch.inf])}, r"^presence_penalty\[1\].*inf"),
    ],
    ids=str,
)
def test_bad_penalties(changes: dict[str, Tensor], words: str) -> None:
    ops.apply_penalties(**penalty_arguments())
    arguments = penalty_arguments() | changes
    before = arguments["logits"].clone()
    with pytest.raises(ValueError, match=words):
        ops.apply_penalties(**arguments)
    assert torch.equal(arguments["logits"], before)


@pytest.mark.parametrize(
    ("bitmask", "words"),
    [
        (torch.zeros(2, 1).int(), "^bitmask: must be .*2.*1"),
        (torch.zeros(2, 2), "^bitmask: must be int32, got float32"),
        (torch.zeros(2, 2).int().T, "^bitmask: must have stride 1"),
    ],
    ids=str,
)
def test_bad_masks(bitmask: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ops.apply_token_mask(torch.zeros(2, 40), bitmask)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logits": torch.zeros(2, 7).double()}, "^logits: must be float32, got float64"),
        ({"logits": torch.zeros(2, 2**20 + 1)}, "logits: number of columns: must be .*got 1048577"),
        (
            {"logits": torch.zeros(2, 2000), "num_top": 1025},
            "top_token_ids: number .* must be .*1025",
        ),
        ({"token_ids": torch.zeros(3).long()}, "^token_ids: must be .*2.*3"),
        ({"token_ids": torch.zeros(2).int()}, "^token_ids: must be int64"),
        ({"token_ids": torch.tensor([0, 7])}, r"^token_ids\[1\].*7"),
    ],
    ids=str,
)
def test_bad_logprobs(changes: dict[str, Any], words: str) -> None:
    right = {"logits": torch.zeros(2, 7), "token_ids": torch.tensor([0, 6]), "num_top": 3}
    ops.top_logprobs(**right)
    with pytest.raises(ValueError, match=words):
        ops.top_logprobs(**right | changes)
