"""A row of attention has the same bits in any company, chunk, layout and number of threads."""

import itertools

import pytest
import torch

from tests.kernels.cache_formats import PLAIN, quantised_cache
from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History, Span, attend
from worker_svc import ops

LENGTH = 150
OPTIONS: list[dict[str, object]] = [
    {},
    {"sliding_window": 50},
    {"soft_cap": 10.0, "alibi_slopes": torch.tensor([0.5, 0.1, 0.02, 0.0])},
    {"sliding_window": 50, "sinks": torch.tensor([-2.0, 0.0, 3.0, 9.0])},
]
PARAMETERS = [
    *((options, False) for options in OPTIONS),
    *((options, True) for options in OPTIONS[1:]),
]

pytestmark = [
    pytest.mark.pairwise,
    pytest.mark.parametrize("dtype", DTYPES, ids=str),
    pytest.mark.parametrize(
        "options",
        PARAMETERS,
        ids=[
            "plain",
            "window",
            "cap_and_alibi",
            "sinks",
            "quantised-window",
            "quantised-cap_and_alibi",
            "quantised-sinks",
        ],
        indirect=True,
    ),
    pytest.mark.parametrize("head_size", [32, 80]),
]


@pytest.fixture
def options(isa: str, request: pytest.FixtureRequest) -> dict[str, object]:
    """Options of `attend`, with a cache as it comes or quantised."""
    options, is_quantised = request.param
    return {**options, "cache": quantised_cache(isa) if is_quantised else PLAIN}


@pytest.fixture
def history(dtype: torch.dtype, head_size: int) -> History:
    return History.random(LENGTH, 4, 2, head_size, dtype, 0)


def one_by_one(history: History, options: dict[str, object]) -> torch.Tensor:
    """Every row by a decode of its own."""
    return torch.cat(
        [attend([Span(history, i, i + 1)], **options)[0] for i in range(len(history.query))]
    )


def test_chunks(isa: str, history: History, options: dict[str, object]) -> None:
    expected = one_by_one(history, options)
    for cuts in ([0, LENGTH], [0, 16, 64, LENGTH], [0, 1, 149, LENGTH], [0, 63, 65, 130, LENGTH]):
        rows = [
            attend([Span(history, begin, end)], **options)[0]
            for begin, end in itertools.pairwise(cuts)
        ]
        assert torch.equal(torch.cat(rows), expected)


def test_batch_of_many(
    isa: str, dtype: torch.dtype, head_size: int, history: History, options: dict[str, object]
) -> None:
    [expected] = attend([Span(history, LENGTH - 1, LENGTH)], **options)
    spans = []
    num_mates = 9 if isa.startswith("cuda") else 36
    for mate in range(num_mates):
        length = 1 + 11 * mate
        begin = length - 1 if mate % 3 else max(mate, length - 24)
        other = History.random(length, 4, 2, head_size, dtype, 1 + mate)
        spans.append(Span(other, begin, length))
    for place in (0, num_mates // 2, num_mates):
        batch = spans.copy()
        batch.insert(place, Span(history, LENGTH - 1, LENGTH))
        assert torch.equal(attend(batch, seed=place, **options)[place], expected)


def test_layouts(isa: str, history: History, options: dict[str, object]) -> None:
    spans = [Span(history, 100, LENGTH), Span(history, 0, 40)]
    expected = torch.cat(attend(spans, **options))
    for block_size in (8, 16, 32, 128):
        for token_first in (False, True):
            rows = attend(
                spans,
                block_size=block_size,
                token_first=token_first,
                fused_query=token_first,
                seed=block_size,
                **options,
            )
            assert torch.equal(torch.cat(rows), expected)


def test_threads(
    isa: str, history: History, options: dict[str, object], thread_counts: tuple[int, ...]
) -> None:
    spans = [Span(history, 100, LENGTH), Span(history, 149, 150), Span(history, 0, 40)]
    results = []
    for count in thread_counts:
        ops.set_num_threads(count)
        results.append(torch.cat(attend(spans, **options)))
    assert all(torch.equal(result, results[0]) for result in results)
