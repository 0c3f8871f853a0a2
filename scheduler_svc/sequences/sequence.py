"""The units of scheduling: sequences, and the group of all sequences of a request."""

from collections.abc import Iterable
from enum import Enum, auto

from quire.contract.outputs import TOKENS_OF_DECODING, FinishReason
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import SamplingParams
from scheduler_svc.sequences.beam_search import BeamSearch


class SequenceStatus(Enum):
    """Where a sequence is.

    WAITING sequences hold nothing, RUNNING ones hold blocks of the cache, SWAPPED ones blocks of
    the host's memory. In a running group, sequences wait until they can be forked.
    """

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED = auto()


class Sequence:
    """The tokens of one output, prompt included, and how far they are computed.

    Token i has its key and value in the cache when i < num_computed_tokens; the step that computes
    the last token samples the next one. Until that step's result is in, the token is pending: the
    workers have it, and can compute it in the step after, but its id is not known here.

    Invariant: 0 <= num_computed_tokens <= num_tokens + num_pending_tokens.

    Attributes:
        sequence_id: unique for the life of the scheduler.
        sequence_index: number within the request; part of the random counter of sampling.
        token_ids: prompt, then output.
        num_prompt_tokens: how many of `token_ids` are the prompt.
        num_computed_tokens: tokens that are computed, or will be once the steps already scheduled
            have run.
        num_charged_tokens: tokens that its tenant was charged for, here or elsewhere.
        num_pending_tokens: tokens that steps in flight sample.
        num_published_blocks: how many blocks, from the first, other sequences can find.
        block_hashes: of its first full blocks, as far as they have been needed.
        status: see SequenceStatus.
        is_mirrored: whether the workers hold it, once the orders given so far are carried out.
        samples: whether its last token is computed to sample the next, not to get a vector.
    """

    __slots__ = (
        "block_hashes",
        "is_mirrored",
        "num_charged_tokens",
        "num_computed_tokens",
        "num_pending_tokens",
        "num_prompt_tokens",
        "num_published_blocks",
        "samples",
        "sequence_id",
        "sequence_index",
        "status",
        "token_ids",
    )

    def __init__(
        self,
        sequence_id: int,
        sequence_index: int,
        prompt_token_ids: Iterable[int],
        output_token_ids: Iterable[int] = (),
        samples: bool = True,
    ) -> None:
        self.sequence_id = sequence_id
        self.sequence_index = sequence_index
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.token_ids.extend(output_token_ids)
        self.num_computed_tokens = 0
        self.num_charged_tokens = len(self.token_ids)
        self.num_pending_tokens = 0
        self.num_published_blocks = 0
        self.block_hashes: list[bytes] = []
        self.status = SequenceStatus.WAITING
        self.is_mirrored = False
        self.samples = samples

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens produced so far, those of an earlier session included."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_shareable_tokens(self) -> int:
        """Tokens that all sequences of the group have in common and need not compute again.

        Not the last of the prompt: computing it is what samples a sequence's own first token.
        """
        return self.num_prompt_tokens - 1


class SequenceGroup:
    """A request: the sequences made from one prompt, queued, preempted and finished together.

    Attributes:
        group_id: unique, and increasing in order of arrival.
        order: the group with the smaller one goes first; unique.
        sequences: those that have not ended, by sequence id.
        sampling_params: of the request, with a seed.
        stop_token_ids: tokens that end a sequence, end-of-text ids included where they count.
        is_single: whether it never has more than one sequence.
        max_num_tokens: length, prompt included, at which a sequence ends.
        num_prompt_tokens: of each sequence.
        cache_salt: sequences share cached prefixes with those of the same salt only.
        traceparent: W3C Trace Context of the request, handed on to the workers.
        tenant: whose request it is; "" where that is not known.
        weight: of the tenant's share.
        is_charged: whether the tenant was charged for the prompt.
        suspect_until: tokens that it had, computed or in flight, when workers were lost that it may
            have cost; 0 if it is no suspect.
        num_lost_alone: how often workers were lost while it was computed alone.
        pooling_params: of a request for a vector; None where it is for tokens.
        beam_search: decides which sequences live; None where each samples for itself.
    """

    __slots__ = (
        "beam_search",
        "cache_salt",
        "group_id",
        "is_charged",
        "is_single",
        "max_num_tokens",
        "num_lost_alone",
        "num_prompt_tokens",
        "order",
        "pooling_params",
        "sampling_params",
        "sequences",
        "stop_token_ids",
        "suspect_until",
        "tenant",
        "traceparent",
        "weight",
    )

    def __init__(
        self,
        group_id: int,
        order: tuple[float, int],
        sequences: Iterable[Sequence],
        sampling_params: SamplingParams,
        stop_token_ids: frozenset[int],
        max_num_tokens: int,
        cache_salt: bytes = b"",
        traceparent: str = "",
        tenant: str = "",
        weight: float = 1.0,
        is_charged: bool = False,
        suspect_until: int = 0,
        num_lost_alone: int = 0,
        pooling_params: PoolingParams | None = None,
    ) -> None:
        self.group_id = group_id
        self.order = order
        self.sequences = {sequence.sequence_id: sequence for sequence in sequences}
        self.sampling_params = sampling_params
        self.stop_token_ids = stop_token_ids
        self.is_single = sampling_params.width == 1
        self.max_num_tokens = max_num_tokens
        self.num_prompt_tokens = max(
            (each.num_prompt_tokens for each in self.sequences.values()), default=0
        )
        self.cache_salt = cache_salt
        self.traceparent = traceparent
        self.tenant = tenant
        self.weight = weight
        self.is_charged = is_charged
        self.suspect_until = suspect_until
        self.num_lost_alone = num_lost_alone
        self.pooling_params = pooling_params
        self.beam_search: BeamSearch | None = None
        if sampling_params.use_beam_search:
            (first,) = self.sequences.values()
            self.beam_search = BeamSearch(
                sampling_params, first.sequence_id, len(stop_token_ids), first.num_prompt_tokens
            )

    @property
    def num_seqs(self) -> int:
        """Sequences that run at once, or will: beams are forked as the search goes on."""
        return len(self.sequences) if self.beam_search is None else self.sampling_params.width

    @property
    def tokens_of_decoding(self) -> int:
        """Tokens for which what it will decode counts as work, see TOKENS_OF_DECODING."""
        return 0 if self.pooling_params is not None else self.num_seqs * TOKENS_OF_DECODING

    def in_status(self, status: SequenceStatus) -> list[Sequence]:
        """Return the sequences of a status, in order of their ids."""
        return [each for each in self.sequences.values() if each.status is status]

    def finish_reason(self, sequence: Sequence) -> FinishReason | None:
        """Return why `sequence` ends with its last token, or None if it goes on."""
        token_ids = sequence.token_ids
        if token_ids[-1] in self.stop_token_ids:
            return FinishReason.STOP
        if len(token_ids) >= self.max_num_tokens:
            return FinishReason.LENGTH
        return None
