"""Grammars of sequences: which tokens each may have next, worked out while the model computes.

What a grammar allows is a function of the sequence's own output. So nothing is rolled back here
where a draft was wrong, and nothing restored where a sequence was preempted or comes from another
worker: a state compares the tokens that it has taken with those that there are.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quire.contract.errors import QuireError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import open_matcher, why_failed
from quire.observe.log import get_logger

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask = npt.NDArray[np.int32]

NUM_THREADS = 2
# Of a thread: many times what the router lets a grammar take, since an overflow ends the process.
STACK_BYTES = 2**26
# Grammars that no sequence need have, to be found by the next one.
MAX_KEPT = 32

log = get_logger()


@dataclass(slots=True)
class GrammarTimes:
    """Sums over masks.

    Attributes:
        num_masks: that were filled.
        fill_us: microseconds that filling took, of all threads.
        wait_us: microseconds that steps had to wait for masks once the logits were there.
    """

    num_masks: int = 0
    fill_us: int = 0
    wait_us: int = 0


class Grammars:
    """Opens grammars and fills masks, in threads of its own.

    Args:
        open_vocabulary: reads the tokenizer; called once, in a thread.
        vocab_size: of the model.
        eos_token_ids: end-of-text ids of the model; the first is that of the vocabulary.

    Attributes:
        times: of the masks so far.
    """

    def __init__(
        self,
        open_vocabulary: Callable[[], "LLTokenizer"],
        vocab_size: int,
        eos_token_ids: Sequence[int],
    ) -> None:
        self.times = GrammarTimes()
        self.num_words = -(-vocab_size // 32)
        # Bits of the last word that are tokens of the model.
        self.last_bits = np.int32((1 << vocab_size % 32) - 1) if vocab_size % 32 else np.int32(-1)
        self.eos_token_ids = eos_token_ids
        # Grammars are opened by a thread that no mask waits for.
        self._opener = _start_threads(1, "grammar-opener")
        self._threads = _start_threads(NUM_THREADS, "grammar")
        self._vocabulary = self._opener.submit(open_vocabulary)
        self._kept: OrderedDict[StructuredOutputsParams, Future[LLMatcher]] = OrderedDict()

    def state(self, params: StructuredOutputsParams, num_prompt_tokens: int) -> "GrammarState":
        """Return the state of a new sequence; its grammar is being opened, or was.

        Args:
            params: the grammar.
            num_prompt_tokens: tokens before the output.
        """
        start = self._kept.get(params)
        if start is None or (start.done() and start.exception() is not None):
            start = self._kept[params] = self._opener.submit(self.open, params)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(params)
        return GrammarState(self, params, start, num_prompt_tokens)

    def open(self, params: StructuredOutputsParams) -> "LLMatcher":
        """Return the state of a grammar before the first token; waits for the tokenizer.

        Raises:
            QuireError: the grammar, or the tokenizer, is none that there could be masks of.
        """
        return open_matcher(self._vocabulary.result(), params)

    @property
    def num_vocabulary_words(self) -> int:
        """Words of a mask of the tokenizer, which may know more tokens than the model."""
        return -(-self._vocabulary.result().vocab_size // 32)

    def start_masks(self, jobs: Sequence["MaskJob"]) -> "PendingMasks":
        """Begin to fill masks.

        Args:
            jobs: of distinct sequences, whose tokens do not change before all is done.
        """
        masks = np.empty((sum(len(job.indices) for job in jobs), self.num_words), np.int32)
        places, first = [], 0
        for job in jobs:
            places.append(masks[first : first + len(job.indices)])
            first += len(job.indices)
        work = list(zip(jobs, places, strict=True))
        # A few pieces, since handing one over costs as much as filling a mask.
        pieces = [work[start::NUM_THREADS] for start in range(min(NUM_THREADS, len(work)))]
        futures = [self._threads.submit(_fill_all, piece) for piece in pieces]
        indices = [index for job in jobs for index in job.indices]
        return PendingMasks(self.times, jobs, dict(zip(indices, masks, strict=True)), futures)


@dataclass(frozen=True, slots=True)
class MaskJob:
    """Masks to be filled for one sequence.

    Attributes:
        state: of its grammar.
        indices: rows of the logits, one after the other, the last of which follows all the tokens;
            each before it follows one token less.
        token_ids: [num_tokens] int32 tokens of the sequence, prompt and output.
    """

    state: "GrammarState"
    indices: Sequence[int]
    token_ids: npt.NDArray[np.int32]


class PendingMasks:
    """Masks that threads are filling.

    Args:
        times: to be added to.
        jobs: what is filled.
        masks: by row of the logits.
        futures: what fills them; each returns the microseconds it took.
    """

    def __init__(
        self,
        times: GrammarTimes,
        jobs: Sequence[MaskJob],
        masks: dict[int, Mask],
        futures: Sequence[Future[int]],
    ) -> None:
        self._times = times
        self._jobs = jobs
        self._masks = masks
        self._futures = futures

    def wait(self) -> dict[int, Mask]:
        """Return the masks [ceil(vocab_size / 32)] int32 by row; see ops.apply_token_mask."""
        started_ns = time.perf_counter_ns()
        for future in self._futures:
            self._times.fill_us += future.result()
        self._times.wait_us += (time.perf_counter_ns() - started_ns) // 1000
        self._times.num_masks += len(self._masks)
        return self._masks

    @property
    def failed_rows(self) -> frozenset[int]:
        """The rows whose grammar has failed; only after `wait`."""
        return frozenset(
            index for job in self._jobs if job.state.has_failed for index in job.indices
        )


class GrammarState:
    """How far the output of one sequence has come in its grammar. Used by one thread at a time.

    Args:
        grammars: opens it again where need be.
        params: the grammar.
        start: its state before the first token, which other sequences share.
        num_prompt_tokens: tokens before the output.
    """

    def __init__(
        self,
        grammars: Grammars,
        params: StructuredOutputsParams,
        start: Future["LLMatcher"],
        num_prompt_tokens: int,
    ) -> None:
        self._grammars = grammars
        self._params = params
        self._start = start
        self._num_prompt_tokens = num_prompt_tokens
        self._matcher: LLMatcher | None = None
        self._is_private = False
        # What the matcher has taken: so many tokens of the output that are sure, then drafts.
        self._num_sure = 0
        self._drafts: list[int] = []
        self._has_ended = False  # with an end-of-text id, which the matcher does not take
        self._failure = ""

    def fork(self) -> "GrammarState":
        """Return the state of a sequence that has the same tokens so far."""
        return GrammarState(self._grammars, self._params, self._start, self._num_prompt_tokens)

    @property
    def has_failed(self) -> bool:
        """Whether the last call of `fill` could not tell what may come next."""
        return self._failure != ""

    def fill(self, masks: npt.NDArray[np.int32], token_ids: npt.NDArray[np.int32]) -> None:
        """Write which tokens may come next.

        Where the grammar fails, whatever the cause, all masks allow nothing and `has_failed` tells
        it from a request that forbids every token: the sequence ends as it does by logits that are
        not finite. After a draft that may not come masks mean nothing.

        Args:
            masks: [n, ceil(vocab_size / 32)] int32, written: the last follows all tokens, each
                before it one token less.
            token_ids: [num_tokens] int32 tokens of the sequence, prompt and output; all but the
                last n - 1, which are drafts, are those of the last call and more.
        """
        if not self._failure:
            self._failure = self._fill(masks, token_ids)
            if self._failure:
                log.warning("grammar_failed", reason=self._failure)
        if self._failure:
            masks[:] = 0

    def _fill(self, masks: npt.NDArray[np.int32], token_ids: npt.NDArray[np.int32]) -> str:
        """Write masks; return why that cannot be done, "" if it can."""
        output = token_ids[self._num_prompt_tokens :]
        try:
            if self._matcher is None:
                self._matcher = self._start.result().deep_copy()
            reason = self._fill_with(self._matcher, masks, output)
            if reason and not self._is_private:
                # Sequences of the same grammar share what their matchers have learnt, and the
                # limits of that. Whether this one fails must not depend on them.
                self._matcher = self._open_alone(output[: len(output) + 1 - len(masks)])
                reason = self._fill_with(self._matcher, masks, output)
        except QuireError as error:
            return error.message
        except Exception as error:  # whatever it is, it is of this sequence alone
            return f"{type(error).__name__}: {error}"
        return reason

    def _fill_with(
        self,
        matcher: "LLMatcher",
        masks: npt.NDArray[np.int32],
        output: npt.NDArray[np.int32],
    ) -> str:
        new = output[self._num_sure :].tolist()
        num_new = len(new) + 1 - len(masks)
        if not self._take_sure(matcher, new[:num_new]):
            return why_failed(matcher) or "the output is none of the grammar"
        has_ended = self._has_ended
        for mask, draft in zip(masks, [None, *new[num_new:]], strict=True):
            if draft is not None and not has_ended:
                has_ended = draft in self._grammars.eos_token_ids
                if not has_ended and not matcher.try_consume_tokens([draft]):
                    masks[1 + len(self._drafts) :] = -1
                    return why_failed(matcher)
                if not has_ended:
                    self._drafts.append(draft)
            if reason := self._write(matcher, mask, has_ended):
                return reason
        return ""

    def _take_sure(self, matcher: "LLMatcher", new: list[int]) -> bool:
        """Take tokens that follow those that are sure; return whether they may come."""
        drafts, self._drafts = self._drafts, []
        pairs = enumerate(zip(drafts, new, strict=False))
        same = next((at for at, (draft, token_id) in pairs if draft != token_id), None)
        if same is None:
            same = min(len(drafts), len(new))
        if same < len(drafts) and not matcher.rollback(len(drafts) - same):
            return False
        self._num_sure += len(new)
        for token_id in new[same:]:
            # Behind the end there may be anything, of a step that was sent ahead.
            self._has_ended = self._has_ended or token_id in self._grammars.eos_token_ids
            if not self._has_ended and not matcher.try_consume_tokens([token_id]):
                return False
        return True

    def _open_alone(self, output: npt.NDArray[np.int32]) -> "LLMatcher":
        """Return a matcher of its own, after it went through the output step by step."""
        self._is_private = True
        self._num_sure, self._drafts, self._has_ended = 0, [], False
        matcher = self._grammars.open(self._params)
        unread = np.empty(self._grammars.num_words, np.int32)
        for token_id in output.tolist():
            self._write(matcher, unread, has_ended=False)
            self._num_sure += 1
            self._has_ended = token_id in self._grammars.eos_token_ids
            if self._has_ended:
                break
            if not matcher.try_consume_tokens([token_id]):
                self._num_sure -= 1  # to be found again
                break
        return matcher

    def _write(self, matcher: "LLMatcher", mask: Mask, has_ended: bool) -> str:
        """Write what may come next; return why not, "" if it was written."""
        ends = self._grammars.eos_token_ids
        if has_ended:
            mask[:] = 0
            _allow(mask, ends)
            return ""
        words = np.empty(self._grammars.num_vocabulary_words, np.int32)
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if reason := why_failed(matcher):
            return reason
        mask[:] = words[: len(mask)]
        mask[-1] &= self._grammars.last_bits
        if len(ends) > 1 and mask[ends[0] // 32] >> (ends[0] % 32) & 1:
            _allow(mask, ends)
        return ""


def _start_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return threads with large stacks, all of them started."""
    before = threading.stack_size(STACK_BYTES)
    try:
        threads, all_run = ThreadPoolExecutor(count, name), threading.Barrier(count)
        for started in [threads.submit(all_run.wait) for _ in range(count)]:
            started.result()
    finally:
        threading.stack_size(before)
    return threads


def _allow(mask: Mask, token_ids: Sequence[int]) -> None:
    for token_id in token_ids:
        mask[token_id // 32] |= np.array(1 << token_id % 32, np.uint32).astype(np.int32)


def _fill_all(work: Sequence[tuple[MaskJob, npt.NDArray[np.int32]]]) -> int:
    """Fill the masks of some jobs; return the microseconds it took."""
    started_ns = time.perf_counter_ns()
    for job, masks in work:
        job.state.fill(masks, job.token_ids)
    return (time.perf_counter_ns() - started_ns) // 1000
