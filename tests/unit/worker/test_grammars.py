"""Masks against their definition: a token is allowed where the grammar takes it, or its end.

Where only one text can follow, its own tokens are allowed, and no other spelling of it.
"""

from random import Random

import numpy as np
import pytest
from llguidance import LLTokenizer

from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import open_matcher, open_vocabulary
from tests.fakes import small_tokenizers
from worker_svc.sampling.grammars import Grammars, GrammarState, MaskJob

VOCAB_SIZE = 500  # the tokenizer has 480
EOS = (1, 490)
PROMPT = [7, 8, 9]
GRAMMARS = [
    StructuredOutputsParams(regex="(return|class)( [a-z]{1,3}){0,2}"),
    StructuredOutputsParams(choice=["a", "abc", "naïve café", "中文"]),
    StructuredOutputsParams(grammar='start: "(" start ")" | "x" start? | '),
    StructuredOutputsParams(
        json={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["sort", None]}},
            "required": ["b"],
            "additionalProperties": False,
        }
    ),
]


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return open_vocabulary(small_tokenizers.byte_level(), VOCAB_SIZE, EOS)


@pytest.fixture
def grammars(vocabulary: LLTokenizer) -> Grammars:
    return Grammars(lambda: vocabulary, VOCAB_SIZE, EOS)


def tokens_of(masks: np.ndarray) -> list[set[int]]:
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


def masks_of(
    grammars: Grammars, state: GrammarState, output: list[int], num_drafts: int = 0
) -> list[set[int]]:
    """What a thread finds to be allowed before each draft and behind the last one."""
    token_ids = np.array([*PROMPT, *output], np.int32)
    indices = list(range(5, 6 + num_drafts))
    pending = grammars.start_masks([MaskJob(state, indices, token_ids)])
    found = pending.wait()
    assert list(found) == indices
    assert pending.failed_rows == (frozenset(indices) if state.has_failed else frozenset())
    return tokens_of(np.array(list(found.values())))


def allowed(
    vocabulary: LLTokenizer, params: StructuredOutputsParams, output: list[int]
) -> set[int] | None:
    """The definition, token by token; None where the output itself is not taken."""
    matcher = open_matcher(vocabulary, params)
    if matcher.try_consume_tokens(output) < len(output):
        return None
    forced = matcher.deep_copy().compute_ff_tokens()
    if forced:
        assert matcher.deep_copy().try_consume_tokens(forced[:1])
        return {forced[0]}
    others = set(range(VOCAB_SIZE)) - set(EOS)
    found = {each for each in others if matcher.deep_copy().try_consume_tokens([each])}
    return found | set(EOS) if matcher.is_accepting() else found


@pytest.mark.parametrize("params", GRAMMARS, ids=lambda params: params.given[0])
def test_masks_are_what_is_taken_whatever_was_drafted(
    params: StructuredOutputsParams, vocabulary: LLTokenizer, grammars: Grammars
) -> None:
    draw, num_drafts, num_wrong = Random(0), 0, 0
    for _ in range(6):
        state, output = grammars.state(params, len(PROMPT)), list[int]()
        for _ in range(12):
            # Drafts that are right for a while, and then perhaps are not.
            drafts: list[int] = []
            for _ in range(draw.randint(0, 3)):
                taken = output + drafts
                right = sorted((allowed(vocabulary, params, taken) or set()) - set(EOS))
                is_right = right and draw.random() < 0.8
                drafts.append(draw.choice(right) if is_right else draw.randrange(2, 480))
            found = masks_of(grammars, state, output + drafts, len(drafts))
            for place, mask in enumerate(found):
                expected = allowed(vocabulary, params, output + drafts[:place])
                num_wrong += expected is None
                assert expected is None or mask == expected
            num_drafts += len(drafts)
            # A state that begins here knows no less.
            assert masks_of(grammars, state.fork(), output) == found[:1]
            # The sampled token, and drafts as far as they are right, sometimes none of them.
            for place, draft in enumerate(drafts[: draw.randint(0, len(drafts))]):
                if draft not in found[place]:
                    break
                output.append(draft)
            now = sorted(allowed(vocabulary, params, output) or set())
            output.append(draw.choice(now))
            if output[-1] in EOS:
                break
    assert num_drafts > 20
    assert num_wrong > 2


def test_behind_its_end_a_sequence_may_only_end(grammars: Grammars) -> None:
    for end in EOS:
        state = grammars.state(StructuredOutputsParams(regex="a*"), len(PROMPT))
        assert masks_of(grammars, state, [end]) == [set(EOS)]
        # A step that was sent ahead computes what is thrown away.
        assert masks_of(grammars, state, [end, 300]) == [set(EOS)]
        # An end that was drafted, and was not sampled.
        state = grammars.state(StructuredOutputsParams(regex="a*"), len(PROMPT))
        before, behind = masks_of(grammars, state, [end], 1)
        assert behind == set(EOS) < before
        (after,) = masks_of(grammars, state, [min(before - set(EOS))])
        assert after > set(EOS)


def test_what_no_grammar_takes_fails_alone(grammars: Grammars) -> None:
    good, bad = (grammars.state(GRAMMARS[0], len(PROMPT)) for _ in range(2))
    (expected,) = masks_of(grammars, good, [])
    assert masks_of(grammars, bad, [2, 2, 2]) == [set()]
    assert masks_of(grammars, bad, []) == [set()], "it has failed for good"
    assert bad.has_failed and not good.has_failed
    assert masks_of(grammars, good, []) == [expected]
    refused = grammars.state(StructuredOutputsParams(regex="("), len(PROMPT))
    assert masks_of(grammars, refused, []) == [set()]
    assert refused.has_failed


def test_a_grammar_that_reaches_a_limit_fails_where_it_would_alone(
    vocabulary: LLTokenizer, grammars: Grammars
) -> None:
    """A limit that sequences of one grammar share is not reached by several together."""
    params = StructuredOutputsParams(regex="((a{1,100}){1,100}){1,100}")

    def steps(grammars: Grammars) -> int:
        state, output = grammars.state(params, len(PROMPT)), list[int]()
        while mask := masks_of(grammars, state, output)[0] - set(EOS):
            output.append(min(mask))
        assert state.has_failed
        return len(output)

    alone = steps(Grammars(lambda: vocabulary, VOCAB_SIZE, EOS))
    assert 5 < alone < 100, "it reaches no limit"
    assert [steps(grammars) for _ in range(3)] == [alone] * 3


def test_without_a_tokenizer_sequences_fail_one_by_one() -> None:
    def fail() -> LLTokenizer:
        raise OSError("gone")

    grammars = Grammars(fail, VOCAB_SIZE, EOS)
    for params in GRAMMARS[:2]:
        state = grammars.state(params, len(PROMPT))
        assert masks_of(grammars, state, []) == [set()]
        assert state.has_failed
