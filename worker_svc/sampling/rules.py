"""Changes to the logits of a request before its token is drawn: bans, biases and penalties."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.contract.sampling_params import SamplingParams
from worker_svc import ops
from worker_svc.arrays import IntArray
from worker_svc.device.base import Array


@dataclass(frozen=True, slots=True)
class LogitRules:
    """The rules of one sequence, applied to its row alone and in the order of the fields.

    Every operation is element by element, so the bits of a row do not depend on other rows.

    Attributes:
        allowed: [n] int64, the only token ids that may be sampled; empty allows all.
        early_ends: [n] int64, token ids that must not be sampled before the sequence has
            `min_length` tokens.
        min_length: tokens, prompt included.
        biased: [m] int64, token ids whose logits are shifted.
        bias: [m] float32, added to these logits.
        repetition: divides positive and multiplies negative logits of tokens in prompt or output.
        frequency: subtracted for each time the output holds a token.
        presence: subtracted once if the output holds a token.
        num_prompt_tokens: tokens of the prompt; the output begins after them.
        bad_words: runs of token ids that the output must not hold.
    """

    allowed: IntArray
    early_ends: IntArray
    min_length: int
    biased: IntArray
    bias: npt.NDArray[np.float32]
    repetition: float
    frequency: float
    presence: float
    num_prompt_tokens: int
    bad_words: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, params: SamplingParams, num_prompt_tokens: int, eos_token_ids: tuple[int, ...]
    ) -> "LogitRules | None":
        """Return the rules that parameters ask for, or None if they ask for none.

        Args:
            params: sampling parameters of the request.
            num_prompt_tokens: tokens of its prompt.
            eos_token_ids: end-of-text ids of the model; they end a sequence unless `params` says to
                ignore them.
        """
        penalises = (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        )
        asked = (
            params.allowed_token_ids,
            params.min_tokens,
            params.logit_bias,
            params.bad_words_token_ids,
            params.structured_outputs,
            penalises,
        )
        if not any(asked):
            return None
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
        return cls(
            allowed=_ids(params.allowed_token_ids),
            early_ends=_ids(sorted(ends)),
            min_length=num_prompt_tokens + params.min_tokens,
            biased=_ids(params.logit_bias),
            bias=np.array(list(params.logit_bias.values()), np.float32),
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            num_prompt_tokens=num_prompt_tokens,
            bad_words=params.bad_words_token_ids,
        )

    @property
    def penalises(self) -> bool:
        """Whether logits of tokens that the sequence holds are changed."""
        return self.repetition != 1.0 or self.frequency != 0.0 or self.presence != 0.0

    def forbidden(self, token_ids: npt.NDArray[np.int32]) -> IntArray:
        """Return the token ids [n] int64 that must not be drawn next.

        Args:
            token_ids: [num_tokens] int32 tokens of the sequence.
        """
        found = self.early_ends.tolist() if len(token_ids) < self.min_length else []
        if self.bad_words:
            output = token_ids[self.num_prompt_tokens :].tolist()
            found += [
                last
                for *begun, last in self.bad_words
                if not begun or output[-len(begun) :] == begun
            ]
        return np.array(found, np.int64)


@dataclass(frozen=True, slots=True)
class RuledRow:
    """A row of logits with rules.

    Attributes:
        index: which row.
        rules: rules of its sequence.
        token_ids: [num_tokens] int32 tokens of the sequence, prompt and output.
        mask: [ceil(vocab_size / 32)] int32, what its grammar allows; None for all.
        has_failed_grammar: the mask allows nothing because the grammar has failed.
    """

    index: int
    rules: LogitRules
    token_ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.int32] | None = None
    has_failed_grammar: bool = False

    @property
    def has_grammar(self) -> bool:
        """Whether its sequence is under a grammar."""
        return self.mask is not None

    @property
    def is_masked(self) -> bool:
        """Whether it names the tokens that may be drawn, and not only some that may not."""
        return self.has_grammar or len(self.rules.allowed) > 0

    def forbidden(self) -> IntArray:
        """Return the token ids [n] int64 that must not be drawn next.

        Where a grammar allows nothing but an end, `min_tokens` does not hold it back.
        """
        found = self.rules.forbidden(self.token_ids)
        if self.mask is None or len(found) == 0 or _has_others(self.mask, self.rules.early_ends):
            return found
        return found[~np.isin(found, self.rules.early_ends)]


def apply_rules(
    logits: torch.Tensor,
    rows: Sequence[RuledRow],
    place: Callable[[Mapping[str, Array]], dict[str, torch.Tensor]],
) -> frozenset[int]:
    """Change rows of logits; the number of operations does not grow with the number of rows.

    Returns:
        The rows whose requests leave them no token, by `RuledRow.index`; a grammar that has failed
        leaves none either, but by no fault of the request.

    Mutates: logits.

    Args:
        logits: [num_rows, vocab_size] float32.
        rows: [n] the rows that have rules.
        place: copies arrays to the device of the logits; see Device.place.
    """
    vocab_size = logits.shape[1]
    forbidden = [row.forbidden() for row in rows]
    arrays = {
        "rows": np.array([row.index for row in rows], np.int64),
        "forbidden": np.concatenate(
            [index * vocab_size + ids for index, ids in enumerate(forbidden)]
        ),
        **_biases(rows, vocab_size),
    }
    bits = None
    if any(row.is_masked for row in rows):
        bits = arrays["allowed"] = _bitmask(rows, vocab_size)
    penalties = _penalties(rows) if any(row.rules.penalises for row in rows) else {}
    placed = place({**arrays, **penalties})
    chosen = logits.index_select(0, placed["rows"])
    if "allowed" in placed:
        ops.apply_token_mask(chosen, placed["allowed"])
    flat = chosen.view(-1)
    flat.index_fill_(0, placed["forbidden"], -torch.inf)
    flat.index_add_(0, placed["biased"], placed["bias"])
    if penalties:
        ops.apply_penalties(chosen, **{name: placed[name] for name in penalties})
    logits.index_copy_(0, placed["rows"], chosen)
    return _barred(rows, bits, forbidden, vocab_size)


def _barred(
    rows: Sequence[RuledRow], bits: Array | None, forbidden: Sequence[IntArray], vocab_size: int
) -> frozenset[int]:
    """Return which rows [n] are left no token by their requests.

    Only here is that told from logits of no use, and from grammars that have failed.

    Args:
        rows: the rows.
        bits: see `_bitmask`; None where no row is masked.
        forbidden: [n] token ids of each that must not be drawn.
        vocab_size: of the model.
    """
    found = []
    for place, (row, token_ids) in enumerate(zip(rows, forbidden, strict=True)):
        if row.has_failed_grammar:
            is_barred = False
        elif row.is_masked:
            assert bits is not None, "there is a row that is masked"
            is_barred = not _has_others(bits[place], token_ids)
        else:
            is_barred = len(token_ids) >= vocab_size and len(np.unique(token_ids)) == vocab_size
        if is_barred:
            found.append(row.index)
    return frozenset(found)


def _has_others(mask: npt.NDArray[np.int32], token_ids: IntArray) -> bool:
    """Return whether a mask [ceil(vocab_size / 32)] int32 allows more than some token ids [n]."""
    if len(token_ids) > 0:
        mask = mask.copy()
        words, bits = np.divmod(token_ids, 32)
        np.bitwise_and.at(mask, words, (~(1 << bits)).astype(np.int32))
    return bool(mask.any())


def _bitmask(rows: Sequence[RuledRow], vocab_size: int) -> Array:
    """Return [n, ceil(vocab_size / 32)] int32 with a bit set for each token that is allowed."""
    words = -(-vocab_size // 32)
    mask = np.full((len(rows), words), -1, np.int32)
    for bits, row in zip(mask, rows, strict=True):
        if len(row.rules.allowed) > 0:
            is_allowed = np.zeros(32 * words, np.bool_)
            is_allowed[row.rules.allowed] = True
            bits[:] = np.packbits(is_allowed, bitorder="little").view(np.int32)
        if row.mask is not None:
            np.bitwise_and(bits, row.mask, out=bits)
    return mask


def _biases(rows: Sequence[RuledRow], vocab_size: int) -> dict[str, Array]:
    """Return the places of biased tokens, int64 in logits [n * vocab_size], and biases float32."""
    ids = [index * vocab_size + row.rules.biased for index, row in enumerate(rows)]
    return {
        "biased": np.concatenate(ids),
        "bias": np.concatenate([row.rules.bias for row in rows]),
    }


def _penalties(rows: Sequence[RuledRow]) -> dict[str, Array]:
    """Return the arguments of ops.apply_penalties beside the logits, by name, for rows [n]."""
    rules = [row.rules for row in rows]
    token_ids = np.zeros((len(rows), max(len(row.token_ids) for row in rows)), np.int32)
    for padded, row in zip(token_ids, rows, strict=True):
        padded[: len(row.token_ids)] = row.token_ids
    return {
        "token_ids": token_ids,
        "num_prompt_tokens": np.array([each.num_prompt_tokens for each in rules], np.int32),
        "num_tokens": np.array([len(row.token_ids) for row in rows], np.int32),
        "repetition_penalty": np.array([each.repetition for each in rules], np.float32),
        "frequency_penalty": np.array([each.frequency for each in rules], np.float32),
        "presence_penalty": np.array([each.presence for each in rules], np.float32),
    }


def _ids(token_ids: Iterable[int]) -> IntArray:
    return np.array(list(token_ids), np.int64)
