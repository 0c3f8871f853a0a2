"""A deterministic stand-in for a model over a paged cache, strict about every order it is given.

It stores token ids where a real worker stores keys and values, and predicts from what it reads back
through the block table. So a wrong block, slot, copy or delta changes the tokens or fails at once.
"""

import math
import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.contract.block_hashes import extend_block_hashes
from quire.contract.outputs import TokenLogprobs
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import PromptLogprobs, SchedulerOutputs, SequenceState, StepResult
from quire.contract.workers import CachedBlock


class WrongOrderError(Exception):
    """An order that no correct scheduler gives."""


def fake_next_token(
    token_ids: Sequence[int], params: SamplingParams, vocab_size: int, sequence_index: int = 0
) -> int:
    """Return the token after `token_ids`; of nothing else but seed and index (unless greedy)."""
    seed, index = (0, 0) if params.temperature == 0.0 else (params.seed, sequence_index)
    assert seed is not None, "a sampled sequence reaches the worker with a seed"
    return zlib.crc32(array("Q", [seed, index, *token_ids]).tobytes()) % vocab_size


def fake_candidates(
    token_ids: Sequence[int], num_candidates: int, vocab_size: int
) -> TokenLogprobs:
    """Return made-up most probable next tokens, after a token that was not chosen."""
    state = zlib.crc32(array("Q", token_ids).tobytes())
    logprobs = {
        token: -0.5 - (zlib.crc32(token.to_bytes(4, "little"), state) % 4001) / 1000
        for token in range(vocab_size)
    }
    best = sorted(logprobs, key=lambda token: -logprobs[token])[:num_candidates]
    return TokenLogprobs((0, *best), (0.0, *(logprobs[token] for token in best)), 1)


def fake_vector(token_ids: Sequence[int], pooling: PoolingParams, size: int = 4) -> bytes:
    """Return a made-up vector of a prompt, as little-endian float32."""
    state = zlib.crc32(array("Q", token_ids).tobytes())
    values = [1.0 + zlib.crc32(bytes([each]), state) % 97 for each in range(size)]
    values = values[: pooling.dimensions]
    length = math.sqrt(sum(each * each for each in values)) if pooling.normalize else 1.0
    return struct.pack(f"<{len(values)}f", *(each / length for each in values))


def fake_generate(
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    eos_token_ids: Sequence[int] = (),
    sequence_index: int = 0,
) -> list[int]:
    """Return the output of a prompt run alone, unconstrained: the reference of every test."""
    stop = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
    tokens = list(prompt)
    limit = min(max_model_len, len(prompt) + (params.max_tokens or max_model_len))
    while len(tokens) < limit:
        tokens.append(fake_next_token(tokens, params, vocab_size, sequence_index))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


@dataclass
class MirroredSequence:
    """What a worker knows of a sequence."""

    token_ids: list[int]
    num_computed_tokens: int
    block_ids: list[int]
    state: SequenceState


class FakeModel:
    """Applies the orders of steps to mirrors of the sequences and to a cache of token ids.

    Attributes:
        sequences: held now, by id.
        num_copied: blocks copied on write so far.
        num_computed: tokens computed so far.
    """

    def __init__(
        self, block_size: int, num_blocks: int, vocab_size: int, num_host_blocks: int = 0
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.vocab_size = vocab_size
        self.sequences: dict[int, MirroredSequence] = {}
        self.num_copied = 0
        self.num_computed = 0
        # Every slot starts as garbage that no token id equals.
        self._cache = [[-1] * block_size for _ in range(num_blocks)]
        self._host_cache = [[-1] * block_size for _ in range(num_host_blocks)]
        # By block, the tokens up to the one computed into it last, with the salt of their sequence.
        self._texts: dict[int, tuple[bytes, list[int]]] = {}
        self._host_texts: dict[int, tuple[bytes, list[int]]] = {}

    @property
    def contents(self) -> list[CachedBlock]:
        """What full blocks of the cache hold, by what was written to them."""
        return self._full(self._texts)

    @property
    def host_contents(self) -> list[CachedBlock]:
        """What full blocks of the host hold."""
        return self._full(self._host_texts)

    def _full(self, texts: dict[int, tuple[bytes, list[int]]]) -> list[CachedBlock]:
        blocks = []
        for block_id, (salt, tokens) in texts.items():
            depth, rest = divmod(len(tokens), self.block_size)
            if depth and not rest:
                hashes: list[bytes] = []
                extend_block_hashes(hashes, tokens, self.block_size, depth, salt)
                blocks.append(CachedBlock(block_id, depth, hashes[-1]))
        return blocks

    def fill(self, block: CachedBlock, text: list[int]) -> None:
        """Write to a block what it holds of a text, as if it had been computed."""
        end = block.depth * self.block_size
        self._cache[block.block_id] = text[end - self.block_size : end]
        self._texts[block.block_id] = b"", text[:end]

    def step(self, outputs: SchedulerOutputs) -> StepResult:
        """Run one step: fork, choose, release, add, swap, copy, run.

        Raises:
            WrongOrderError: the orders contradict themselves or what came before.
        """
        self._fork(outputs)
        self._release(outputs)
        self._add(outputs)
        self._move_blocks(outputs)
        self._change_tables(outputs)
        result = self._run(outputs)
        self._check_blocks()
        return result

    def _held(self, sequence_id: int) -> MirroredSequence:
        if sequence_id not in self.sequences:
            raise WrongOrderError(f"sequence {sequence_id} is not held")
        return self.sequences[sequence_id]

    def _fork(self, outputs: SchedulerOutputs) -> None:
        for parent_id, child_id in outputs.forks:
            parent = self._held(parent_id)
            if child_id in self.sequences:
                raise WrongOrderError(f"fork into sequence {child_id}, which is held")
            self.sequences[child_id] = replace(
                parent, token_ids=list(parent.token_ids), block_ids=list(parent.block_ids)
            )
        for sequence_id, token_id in outputs.chosen_tokens:
            sequence = self._held(sequence_id)
            if sequence.num_computed_tokens != len(sequence.token_ids) - 1:
                raise WrongOrderError(f"sequence {sequence_id} has not just sampled a token")
            sequence.token_ids[-1] = token_id

    def _release(self, outputs: SchedulerOutputs) -> None:
        for sequence_id in outputs.released_sequence_ids:
            self._held(sequence_id)
            del self.sequences[sequence_id]

    def _add(self, outputs: SchedulerOutputs) -> None:
        for state in outputs.new_sequences:
            if state.sequence_id in self.sequences:
                raise WrongOrderError(f"sequence {state.sequence_id} is new, but held already")
            if state.sequence_id not in outputs.sequence_ids:
                raise WrongOrderError(f"sequence {state.sequence_id} is new, but does not run")
            self.sequences[state.sequence_id] = MirroredSequence(
                list(state.token_ids), state.num_computed_tokens, list(state.block_ids), state
            )

    def _move_blocks(self, outputs: SchedulerOutputs) -> None:
        for device, host in outputs.blocks_to_swap_out:
            self._host_cache[host] = list(self._cache[device])
            self._host_texts[host] = self._texts[device]
        for host, device in outputs.blocks_to_swap_in:
            self._cache[device] = list(self._host_cache[host])
            self._texts[device] = self._host_texts.pop(host)
            # Read once: what comes back later must have been moved out again.
            self._host_cache[host] = [-1] * self.block_size
        for source, destination in outputs.blocks_to_copy:
            self._cache[destination] = list(self._cache[source])
            self._texts[destination] = self._texts[source]
            self.num_copied += 1

    def _change_tables(self, outputs: SchedulerOutputs) -> None:
        if not (
            len(outputs.sequence_ids)
            == len(outputs.num_scheduled_tokens)
            == len(outputs.num_new_blocks)
        ):
            raise WrongOrderError("parallel arrays of different lengths")
        if len(set(outputs.sequence_ids)) != len(outputs.sequence_ids):
            raise WrongOrderError("a sequence is in the batch twice")
        if sum(outputs.num_new_blocks) != len(outputs.new_block_ids):
            raise WrongOrderError("num_new_blocks do not add up")
        for sequence_id, place, block_id in outputs.replaced_blocks:
            self._held(sequence_id).block_ids[place] = block_id
        new_block_ids = iter(outputs.new_block_ids)
        for sequence_id, num_new in zip(outputs.sequence_ids, outputs.num_new_blocks, strict=True):
            table = self._held(sequence_id).block_ids
            table.extend(next(new_block_ids) for _ in range(num_new))

    def _check_blocks(self) -> None:
        """Live sequences share blocks only where they have the same tokens from their beginning."""
        prefix_of: dict[int, list[int]] = {}
        for sequence_id, sequence in self.sequences.items():
            if len(set(sequence.block_ids)) != len(sequence.block_ids):
                raise WrongOrderError(f"sequence {sequence_id} holds a block twice")
            for index, block_id in enumerate(sequence.block_ids):
                if not 0 <= block_id < self.num_blocks:
                    raise WrongOrderError(f"block {block_id} of {self.num_blocks}")
                end = min((index + 1) * self.block_size, sequence.num_computed_tokens)
                prefix = sequence.token_ids[:end]
                if prefix_of.setdefault(block_id, prefix) != prefix:
                    raise WrongOrderError(f"block {block_id} belongs to different prefixes")

    def _run(self, outputs: SchedulerOutputs) -> StepResult:
        result = StepResult([], [], [], [], [], [], [])
        slots = outputs.num_draft_slots or [0] * len(outputs.sequence_ids)
        for sequence_id, num_tokens, num_slots in zip(
            outputs.sequence_ids, outputs.num_scheduled_tokens, slots, strict=True
        ):
            sequence = self.sequences[sequence_id]
            end = sequence.num_computed_tokens + num_tokens
            if num_tokens < 1 or end > len(sequence.token_ids):
                raise WrongOrderError(f"sequence {sequence_id} computes {num_tokens} tokens")
            if end > len(sequence.block_ids) * self.block_size:
                raise WrongOrderError(f"sequence {sequence_id} has no slot for token {end - 1}")
            for position in range(sequence.num_computed_tokens, end):
                self._write(sequence, position, sequence.token_ids)
            if sequence.state.sampling_params.prompt_logprobs is not None:
                self._report_prompt(sequence_id, sequence, end, result)
            sequence.num_computed_tokens = end
            self.num_computed += num_tokens
            if num_slots:
                self._speculate(sequence_id, sequence, num_slots, result)
            elif end == len(sequence.token_ids):
                self._end_prompt(sequence_id, sequence, result)
        if not any(logprobs.token_ids for logprobs in result.logprobs):
            result.logprobs.clear()
        return result

    def _write(self, sequence: MirroredSequence, position: int, token_ids: list[int]) -> None:
        """Write the key and value of a token."""
        block_id = sequence.block_ids[position // self.block_size]
        self._cache[block_id][position % self.block_size] = token_ids[position]
        self._texts[block_id] = sequence.state.cache_salt, token_ids[: position + 1]

    def _report_prompt(
        self, sequence_id: int, sequence: MirroredSequence, end: int, result: StepResult
    ) -> None:
        """Report the tokens of the prompt that this step predicts, all of them as certain."""
        first = sequence.num_computed_tokens + 1
        tokens = sequence.token_ids[first : min(end + 1, sequence.state.num_prompt_tokens)]
        if tokens:
            logprobs = [TokenLogprobs((token,), (0.0,), 1) for token in tokens]
            result.prompt_logprobs.append((sequence_id, PromptLogprobs(first, logprobs)))

    def _speculate(
        self, sequence_id: int, sequence: MirroredSequence, num_slots: int, result: StepResult
    ) -> None:
        """Write drafts into all slots, one in three of them wrong, and sample up to the first."""
        end, state = len(sequence.token_ids), sequence.state
        if sequence.num_computed_tokens != end or state.num_candidates:
            raise WrongOrderError(f"sequence {sequence_id} does not sample, but has slots")
        if end + num_slots > len(sequence.block_ids) * self.block_size:
            raise WrongOrderError(f"sequence {sequence_id} has no slot for its last draft")
        drafts: list[int] = []
        for position in range(end, end + num_slots - end % 2):
            context = [*sequence.token_ids, *drafts]
            right = fake_next_token(
                context, state.sampling_params, self.vocab_size, state.sequence_index
            )
            drafts.append((right + (zlib.crc32(array("Q", context)) % 3 == 0)) % self.vocab_size)
            self._write(sequence, position, [*sequence.token_ids, *drafts])
        result.num_draft_tokens.append(len(drafts))
        self.num_computed += len(drafts)
        self._sample(sequence_id, sequence, result)
        for draft in drafts:
            if sequence.token_ids[-1] != draft:
                break
            sequence.num_computed_tokens += 1
            self._sample(sequence_id, sequence, result)

    def _end_prompt(self, sequence_id: int, sequence: MirroredSequence, result: StepResult) -> None:
        """Sample, or report the vector that is asked for instead."""
        pooling = sequence.state.pooling_params
        if pooling is None:
            self._sample(sequence_id, sequence, result)
        else:
            vector = fake_vector(self._context(sequence_id, sequence), pooling)
            result.vectors.append((sequence_id, vector))

    def _context(self, sequence_id: int, sequence: MirroredSequence) -> list[int]:
        """Return the tokens of a sequence as the cache has them."""
        context = [
            self._cache[sequence.block_ids[i // self.block_size]][i % self.block_size]
            for i in range(len(sequence.token_ids))
        ]
        if context != sequence.token_ids:
            raise WrongOrderError(f"the cache of sequence {sequence_id} was overwritten")
        return context

    def _sample(self, sequence_id: int, sequence: MirroredSequence, result: StepResult) -> None:
        context = self._context(sequence_id, sequence)
        state, candidates = sequence.state, TokenLogprobs()
        token_id = fake_next_token(
            context, state.sampling_params, self.vocab_size, state.sequence_index
        )
        if state.num_candidates:
            candidates = fake_candidates(context, state.num_candidates, self.vocab_size)
        sequence.token_ids.append(token_id)
        result.sequence_ids.append(sequence_id)
        result.token_ids.append(token_id)
        result.logprobs.append(candidates)
