"""The decisions of a beam search, on made-up log-probabilities."""

import math
import random

import pytest

from quire.contract.outputs import FinishReason, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from scheduler_svc.sequences.beam_search import BeamSearch
from tests.unit.scheduler.factories import Cell, make_params, make_prompt

PROMPT = [5, 6]
STOP = 1


def search(n: int = 2, **options: object) -> BeamSearch:
    params = SamplingParams(
        n=n,
        best_of=2,
        use_beam_search=True,
        temperature=0.0,
        **options,  # type: ignore[arg-type]
    )
    return BeamSearch(params, 100, 1, len(PROMPT))


def candidates(**logprobs: float) -> TokenLogprobs:
    """Of tokens named t7, t8, ..."""
    tokens = [int(name[1:]) for name in logprobs]
    return TokenLogprobs((0, *tokens), (0.0, *logprobs.values()), 1)


def test_the_best_sums_go_on_whichever_beam_they_come_from() -> None:
    beams = search()
    assert beams.num_candidates == 3
    assert beams.report(100, candidates(t7=-1.0, t8=-1.2, t9=-3.0, t10=-4.0))
    first, second = beams.advance({100: PROMPT}, {STOP}, 50)
    assert [(each.token_id, each.cumulative_logprob) for each in (first, second)] == [
        (7, -1.0),
        (8, -1.2),
    ]
    beams.rename({100: first, 101: second})
    assert not beams.report(100, candidates(t7=-2.0, t8=-5.0, t9=-6.0, t10=-7.0))
    assert beams.report(101, candidates(t7=-0.1, t8=-0.2, t9=-6.0, t10=-7.0))
    following = beams.advance({100: [*PROMPT, 7], 101: [*PROMPT, 8]}, {STOP}, 50)
    assert [(each.sequence_id, each.token_id) for each in following] == [(101, 7), (101, 8)]
    assert following[0].cumulative_logprob == pytest.approx(-1.3)


def test_a_text_that_ends_counts_only_among_the_best() -> None:
    beams = search(early_stopping=True)
    beams.report(100, candidates(t1=-0.1, t7=-1.0, t8=-1.5, t9=-9.0))
    first, second = beams.advance({100: PROMPT}, {STOP}, 50)
    assert (first.token_id, second.token_id) == (7, 8)
    (found,) = beams.hypotheses()
    assert (found.token_ids, found.finish_reason) == ((STOP,), FinishReason.STOP)
    beams.rename({100: first, 101: second})
    # The end is only third here, so that the beams above it go on.
    beams.report(100, candidates(t7=-0.1, t8=-0.2, t1=-0.3, t9=-9.0))
    beams.report(101, candidates(t7=-7.0, t8=-8.0, t1=-9.0, t9=-9.5))
    assert len(beams.advance({100: [*PROMPT, 7], 101: [*PROMPT, 8]}, {STOP}, 50)) == 2
    assert len(beams.hypotheses()) == 1


def test_at_the_greatest_length_the_best_are_the_answer() -> None:
    beams = search(n=1)
    beams.report(100, candidates(t7=-1.0, t8=-1.2, t9=-3.0, t10=-4.0))
    assert beams.advance({100: PROMPT}, {STOP}, len(PROMPT) + 1) == []
    (found,) = beams.hypotheses()
    assert (found.token_ids, found.finish_reason) == ((7,), FinishReason.LENGTH)


def test_a_banned_token_is_no_candidate() -> None:
    beams = search()
    beams.report(100, candidates(t7=-1.0, t8=-math.inf, t9=-math.inf, t10=-math.inf))
    assert [each.token_id for each in beams.advance({100: PROMPT}, {STOP}, 50)] == [7]


@pytest.mark.parametrize("seed", range(20))
def test_as_many_candidates_are_reported_as_can_matter(seed: int) -> None:
    """With every token of a small vocabulary for a candidate, the search is the same."""
    rng = random.Random(seed)
    width, stops = 3, set(range(rng.randint(1, 5)))
    params = SamplingParams(
        n=width, use_beam_search=True, temperature=0.0, early_stopping=rng.choice([True, "never"])
    )
    searches = [BeamSearch(params, 0, len(stops), len(PROMPT)) for _ in range(2)]
    token_ids_of = {0: PROMPT}
    for _ in range(8):
        found = []
        # Few values, so that many are equal.
        ranked = {
            beam: sorted(((-rng.randint(1, 9) / 2, token) for token in range(12)), reverse=True)
            for beam in token_ids_of
        }
        for beams, count in zip(searches, (searches[0].num_candidates, 12), strict=True):
            for beam, best in ranked.items():
                logprobs, tokens = zip(*best[:count], strict=True)
                beams.report(beam, TokenLogprobs((0, *tokens), (0.0, *logprobs), 1))
            found.append(beams.advance(token_ids_of, stops, len(PROMPT) + 8))
        assert found[0] == found[1]
        assert searches[0].hypotheses() == searches[1].hypotheses()
        if not found[0]:
            return
        kept = dict(enumerate(found[0]))
        for beams in searches:
            beams.rename(kept)
        token_ids_of = {
            beam: [*token_ids_of[each.sequence_id], each.token_id] for beam, each in kept.items()
        }
    raise AssertionError("at the greatest length it is over")


def test_the_cost_of_a_search_is_bounded() -> None:
    """However many tokens end a text: what all its beams report is read between two steps."""
    params = SamplingParams(n=64, use_beam_search=True, temperature=0.0)
    assert BeamSearch(params, 100, 65, 3).num_candidates <= 2 * 65


def test_as_many_logprobs_as_were_asked_for() -> None:
    cell = Cell()
    params = make_params(use_beam_search=True, temperature=0.0, n=2, max_tokens=4, logprobs=20)
    group_id = cell.add(make_prompt(3), params)
    cell.run()
    for found in cell.hypotheses[group_id]:
        assert [len(position.token_ids) for position in found.logprobs] == [21] * 4


def test_beams_are_not_run_ahead_and_share_blocks() -> None:
    params = make_params(use_beam_search=True, temperature=0.0, n=3, max_tokens=12)
    found = []
    for max_steps_in_flight in (1, 2):
        cell = Cell(block_size=4, max_steps_in_flight=max_steps_in_flight)
        group_id = cell.add(make_prompt(10), params)
        saved = 0
        while cell.scheduler.has_unfinished:
            cell.step()
            saved = max(saved, cell.blocks.num_blocks_saved)
        assert saved >= 2 * 2, "the full blocks of the prompt, for two more beams"
        assert cell.num_steps == 12
        assert cell.blocks.num_free_blocks == cell.blocks.num_blocks
        found.append(cell.hypotheses[group_id])
    assert found[0] == found[1]
    assert [len(each.token_ids) for each in found[0]] == [12, 12, 12]
    totals = [each.cumulative_logprob for each in found[0]]
    assert totals == sorted(totals, reverse=True)


def test_logprobs_of_beams_are_those_they_were_chosen_by() -> None:
    cell = Cell()
    params = make_params(use_beam_search=True, temperature=0.0, n=2, max_tokens=6, logprobs=2)
    group_id = cell.add(make_prompt(3), params)
    cell.run()
    for found in cell.hypotheses[group_id]:
        assert [position.token_ids[0] for position in found.logprobs] == list(found.token_ids)
        assert all(len(position.token_ids) == 3 for position in found.logprobs)
        assert found.cumulative_logprob == pytest.approx(
            sum(position.logprobs[0] for position in found.logprobs)
        )
