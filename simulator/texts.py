"""Prompts of simulated requests.

A scheduler does not care what tokens mean, only which prompts begin alike. So each text (a
tenant's system prompt, a document, a conversation) begins with its kind and number and goes on with
one and the same token: two prompts have equal blocks exactly as far as they are made of the same
texts. Answers are of that token too, so that a later turn finds them in the cache, as it should.
"""

from typing import NamedTuple

import numpy as np

from simulator.config import Lengths, TrafficConfig

# Below 257, where Python has one object for each number: lists of tokens then share them.
FILLER_TOKEN = 0
_SYSTEM_PROMPT, _DOCUMENT, _CONVERSATION = 1, 2, 3


class SimulatedRequest(NamedTuple):
    """A turn of a conversation; a tuple, since many of them go between processes.

    Attributes:
        request_id: unique.
        conversation_id: that it is a turn of.
        tenant_id: whose system prompt it begins with.
        document_id: that follows; None for none.
        num_conversation_tokens: that follow: turns and answers before, and this turn's message.
        num_output_tokens: of its answer.
        arrival_s: when the client sends it.
    """

    request_id: int
    conversation_id: int
    tenant_id: int
    document_id: int | None
    num_conversation_tokens: int
    num_output_tokens: int
    arrival_s: float


class Library:
    """System prompts and documents; the same for the same configuration and seed.

    Args:
        config: how many there are, and their lengths.
        seed: of their lengths.
    """

    def __init__(self, config: TrafficConfig, seed: int) -> None:
        rng = np.random.Generator(np.random.Philox(seed))
        self.system_prompt_lengths = draw_lengths(rng, config.system_prompt, config.num_tenants)
        self.document_lengths = draw_lengths(rng, config.document, config.num_documents)

    def owner(self, document_id: int) -> int:
        """Return the tenant whose document it is: only its conversations are about it."""
        return document_id % len(self.system_prompt_lengths)

    def num_prompt_tokens(self, request: SimulatedRequest) -> int:
        """Return the length of a request's prompt."""
        num_shared = self.system_prompt_lengths[request.tenant_id]
        if request.document_id is not None:
            num_shared += self.document_lengths[request.document_id]
        return num_shared + request.num_conversation_tokens

    def prompt(self, request: SimulatedRequest) -> list[int]:
        """Return the tokens of a request's prompt."""
        tenant, document = request.tenant_id, request.document_id
        tokens = _text(_SYSTEM_PROMPT, tenant, self.system_prompt_lengths[tenant])
        if document is not None:
            tokens += _text(_DOCUMENT, document, self.document_lengths[document])
        tokens += _text(_CONVERSATION, request.conversation_id, request.num_conversation_tokens)
        return tokens


def draw_lengths(rng: np.random.Generator, lengths: Lengths, count: int) -> list[int]:
    """Return random numbers of tokens."""
    mu = np.log(lengths.mean) - lengths.sigma**2 / 2
    drawn = rng.lognormal(mu, lengths.sigma, count)
    return [int(each) for each in np.clip(np.rint(drawn), lengths.low, lengths.high)]


def _text(kind: int, number: int, length: int) -> list[int]:
    start = [kind, number & 255, number >> 8 & 255, number >> 16 & 255, number >> 24]
    return (start + [FILLER_TOKEN] * (length - len(start)))[:length]
