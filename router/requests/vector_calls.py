"""What all calls for vectors of a router share, so that together they leave room for others."""

import asyncio

# Texts of calls for vectors that wait for the tokenizer, whose queue other requests need too.
MAX_TEXTS_AT_ONCE = 32


class VectorCalls:
    """The calls for vectors of a router, through whichever of its fronts they came.

    Attributes:
        tokenizing: held by each of their texts that is with the tokenizer.
    """

    def __init__(self) -> None:
        self.tokenizing = asyncio.Semaphore(MAX_TEXTS_AT_ONCE)
