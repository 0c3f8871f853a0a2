"""Grammars are tried out before a worker sees them: off the event loop, within limits."""

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import Any

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import CellStatus, ModelInfo
from quire.contract.structured_outputs import StructuredOutputsParams
from router.sandbox.processes import LimitReachedError, Limits, Sandbox

# Processor time to open a grammar and to try it out. A schema of 100 properties takes 0.1 s.
MAX_CPU_S = 0.5
# A worker has more stack: what overflows there has overflowed here.
LIMITS = Limits(MAX_CPU_S, max_memory_bytes=2**31, max_stack_bytes=2**22)
# How a refusal begins that is for the cost: of a grammar as a whole.
COSTLY = "must cost at most"
# Verdicts that are kept, of 32 bytes each and what was wrong.
MAX_KEPT = 4096


class GrammarChecks:
    """Says which grammars may go to a cell.

    Args:
        tokenizer: returns the router's, as tokenizer.json has it.
        text_id: of that.
        cells: returns the status of every cell.
        max_queued: grammars that wait for or are in a process at once.
        limits: of a process.
    """

    def __init__(
        self,
        tokenizer: Callable[[], str],
        text_id: str,
        cells: Callable[[], Collection[CellStatus]],
        max_queued: int = 256,
        limits: Limits = LIMITS,
    ) -> None:
        self._tokenizer = tokenizer
        self._text_id = text_id
        self._cells = cells
        self._settings: dict[str, Any] = {}
        self._sandbox = Sandbox(
            "router.text.grammar_reader",
            lambda: {"tokenizer": self._tokenizer(), **self._settings},
            limits,
            max_queued,
            "the check of grammars",
        )
        # By the digest of a grammar: its refusal, None if it may go.
        self._kept: OrderedDict[bytes, InvalidRequestError | None] = OrderedDict()

    async def check(self, grammar: StructuredOutputsParams, model: ModelInfo) -> None:
        """Check that the workers of a model can obey a grammar, at a bounded cost.

        Raises:
            InvalidRequestError: it is no grammar, costs too much, or no cell can obey any.
            OverloadedError: too many grammars wait.
            UnavailableError: the process that tries them has ended.
        """
        if not model.eos_token_ids:
            raise _refused("the model has no end-of-text id, by which a text could end")
        models = [cell.model for cell in self._cells() if cell.connected and cell.model]
        served = [each for each in models if each.name == model.name]
        if served and all(each.text_id != self._text_id for each in served):
            raise _refused("no cell has this router's tokenizer and version of llguidance")
        text = json.dumps(dataclasses.asdict(grammar)).encode()
        key = sha256(text).digest()
        if key not in self._kept:
            self._kept[key] = await self._verdict(grammar, model)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        if (refusal := self._kept[key]) is not None:
            raise InvalidRequestError(refusal.field, refusal.description)

    async def _verdict(
        self, grammar: StructuredOutputsParams, model: ModelInfo
    ) -> InvalidRequestError | None:
        self._settings = {
            "vocab_size": model.vocab_size,
            "eos_token_ids": list(model.eos_token_ids),
        }
        try:
            await self._sandbox.ask(dataclasses.asdict(grammar))
        except InvalidRequestError as error:
            return error
        except LimitReachedError as error:
            return InvalidRequestError(grammar.field, f"{COSTLY} {error} to be tried out")
        return None

    async def close(self) -> None:
        """End the processes."""
        await self._sandbox.close()


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError("structured_outputs", f"must be absent: {reason}")
