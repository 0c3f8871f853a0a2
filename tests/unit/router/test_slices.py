"""A delta of many tokens, cut: the parts together are what it was."""

import pytest

from quire.contract.outputs import Delta, Finished, FinishReason, TokenLogprobs
from router.requests.slices import in_slices

LOGPROBS = tuple(TokenLogprobs((each,), (-0.5,), 1) for each in range(10))
TEXTS = tuple("abcdefghij")


@pytest.mark.parametrize("size", [1, 3, 5, 9, 10, 11])
def test_slices_are_the_whole(size: int) -> None:
    whole = Delta("abcdefghij and more", tuple(range(10)), LOGPROBS, 2, LOGPROBS[:1], TEXTS)
    parts = [each for each in in_slices(whole, size) if isinstance(each, Delta)]
    assert len(parts) == -(-10 // size)
    assert all(len(each.token_ids) <= size for each in parts)
    assert "".join(each.text for each in parts) == whole.text
    for name in ("token_ids", "logprobs", "prompt_logprobs", "texts"):
        assert sum((getattr(each, name) for each in parts), ()) == getattr(whole, name), name
    assert {each.index for each in parts} == {2}
    assert all(each.text.startswith("".join(each.texts)) for each in parts)


def test_what_cannot_be_cut_stays_whole() -> None:
    for event in (Finished(FinishReason.STOP, 5), Delta("abc", (1, 2, 3)), Delta("", ())):
        assert list(in_slices(event, 1)) == [event]
