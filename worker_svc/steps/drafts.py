"""Drafts: guesses at the next tokens of a sequence, which are computed to see if they are right."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from worker_svc.arrays import IntArray
from worker_svc.steps.rows import SequenceRows

# Returns at most so many guesses [n] at what follows tokens [num_tokens] int32.
Guess = Callable[[npt.NDArray[np.int32], int], npt.NDArray[np.int32]]

# Shorter runs occur again by chance; of those that match further than the longest, the last counts.
SHORTEST_MATCH = 3
LONGEST_MATCH = 8


class Drafter(Protocol):
    """Drafts for the sequences of a step."""

    def __call__(self, held: SequenceRows, rows: IntArray, num_slots: IntArray) -> IntArray:
        """Write drafts behind the tokens of sequences; return [n] int64, how many each got.

        Every rank must write the same.

        Mutates: token_ids of the rows, and num_draft_computed.

        Args:
            held: every sequence.
            rows: [n] int64, distinct.
            num_slots: [n] int64, at least 1, the most drafts of each.
        """


def one_by_one(guess: Guess) -> Drafter:
    """Return what drafts for each sequence from its own tokens alone."""

    def draft(held: SequenceRows, rows: IntArray, num_slots: IntArray) -> IntArray:
        num_drafts = np.zeros_like(rows)
        for index, (row, slots) in enumerate(zip(rows.tolist(), num_slots.tolist(), strict=True)):
            end = held.num_tokens[row]
            found = guess(held.token_ids[row, :end], slots)
            num_drafts[index] = len(found)
            held.token_ids[row, end : end + len(found)] = found
        return num_drafts

    return draft


def prompt_lookup(token_ids: npt.NDArray[np.int32], num_slots: int) -> npt.NDArray[np.int32]:
    """Return what followed the last tokens of a sequence where they occurred before.

    Of several places that with the longest match counts, and the last of equals. What follows it is
    taken to go on as a cycle if it is shorter than asked. All ranks draft the same, since all have
    the same tokens. (Saxena 2023, Prompt lookup decoding.)

    Args:
        token_ids: [num_tokens] int32 tokens of the sequence.
        num_slots: tokens to draft.

    Returns:
        [num_slots] int32, or none if the last tokens are new.
    """
    last = len(token_ids) - 1
    places = np.flatnonzero(token_ids[:last] == token_ids[last])
    for length in range(1, LONGEST_MATCH):
        further = places[places >= length]
        further = further[token_ids[further - length] == token_ids[last - length]]
        if len(further) == 0:
            if length < SHORTEST_MATCH:
                return token_ids[:0]
            break
        places = further
    return np.resize(token_ids[places[-1] + 1 :], num_slots)


def rows_that_count(
    expected_ids: IntArray, token_ids: IntArray, ok: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which rows [n] have nothing but right drafts before them in their sequence.

    Args:
        expected_ids: [n] int64, the draft that the token of each row must equal for the next row to
            count; -1 in the last row of each sequence.
        token_ids: [n] int64 sampled tokens.
        ok: [n] whether the logits were finite.
    """
    is_wrong = ~ok | (token_ids != expected_ids)
    num_wrong = np.cumsum(is_wrong) - is_wrong  # in the rows before
    starts = np.flatnonzero(np.append(-1, expected_ids[:-1]) < 0)
    lengths = np.diff(np.append(starts, len(token_ids)))
    counts: npt.NDArray[np.bool_] = num_wrong == np.repeat(num_wrong[starts], lengths)
    return counts
