"""Grammars that are refused: invalid ones, hostile ones, and all where no cell obeys any."""

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from launch.cluster.config import embedded_model
from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import CellState, CellStatus, ModelInfo
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.tokenizer_files import load_backend
from router.text.grammars import LIMITS, GrammarChecks
from tests.fakes import small_tokenizers
from tests.hostile_grammars import HOSTILE
from worker_svc.sampling.grammars import STACK_BYTES

MODEL = ModelInfo("demo", "LlamaForCausalLM", "float32", 4096, 1024, (0,), 1, "", "text")
GOOD = StructuredOutputsParams(regex="[a-z]+")


def status(model: ModelInfo | None, connected: bool = True) -> CellStatus:
    return CellStatus("host:1", connected, model, CellState())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def checks() -> AsyncIterator[GrammarChecks]:
    backend = load_backend(str(embedded_model()))
    made = GrammarChecks(backend.to_str, "text", lambda: [status(MODEL)])
    yield made
    await made.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_grammar_is_refused_by_name_or_costs_little(
    name: str, checks: GrammarChecks
) -> None:
    given, reason = HOSTILE[name]
    grammar = StructuredOutputsParams(**given)
    good = asyncio.create_task(checks.check(GOOD, MODEL))
    try:
        await checks.check(grammar, MODEL)
    except InvalidRequestError as error:
        assert error.field == grammar.field
        assert reason in error.description
        with pytest.raises(InvalidRequestError):  # known by now, so no process is ended again
            await checks.check(grammar, MODEL)
    else:
        assert not reason
    await good
    await checks.check(replace(GOOD, regex=f"after {name}"), MODEL)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"regex": "(a"}, "unclosed group"),
        ({"json": {"not": {}}}, "Unimplemented keys"),
        ({"grammar": "start: x"}, "unknown name"),
        ({"json": {"type": "integer", "minimum": 2, "maximum": 1}}, "minimum"),
    ],
)
async def test_what_is_no_grammar_is_refused_by_name(
    given: dict[str, Any], reason: str, checks: GrammarChecks
) -> None:
    grammar = StructuredOutputsParams(**given)
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        await checks.check(grammar, MODEL)
    assert caught.value.field == grammar.field


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_is_reported_of_a_client_that_goes_away(checks: GrammarChecks) -> None:
    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    others = asyncio.all_tasks()
    asking = asyncio.create_task(checks.check(StructuredOutputsParams(regex="(gone"), MODEL))
    await asyncio.sleep(0)  # it begins
    asking.cancel()
    await asyncio.wait(asyncio.all_tasks() - others)
    assert asking.cancelled()
    gc.collect()
    loop.set_exception_handler(None)
    assert not reports


@pytest.mark.asyncio(loop_scope="module")
async def test_ordinary_grammars_are_taken(checks: GrammarChecks) -> None:
    string = {"type": "string", "maxLength": 200}
    large = {f"field_{i}": string for i in range(60)}
    for given in (
        {"json_object": True},
        {"choice": [f"choice number {i}" for i in range(1000)]},
        {"json": {"type": "object", "properties": large, "required": list(large)}},
        {"regex": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?Z"},
        {"grammar": 'start: expr\nexpr: NUMBER | expr ("+" | "*") expr\nNUMBER: /[0-9]+/'},
    ):
        await checks.check(StructuredOutputsParams(**given), MODEL)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("model", "cells", "reason"),
    [
        (replace(MODEL, eos_token_ids=()), [status(MODEL)], "no end-of-text id"),
        (MODEL, [status(replace(MODEL, text_id="other"))], "no cell has this router's tokenizer"),
        (MODEL, [status(replace(MODEL, text_id="")), status(MODEL, False)], "no cell has"),
    ],
)
async def test_where_no_cell_obeys_grammars_all_are_refused(
    model: ModelInfo, cells: list[CellStatus], reason: str
) -> None:
    checks = GrammarChecks(lambda: "{}", "text", lambda: cells)
    with pytest.raises(
        InvalidRequestError, match=f"^structured_outputs: must be absent: .*{reason}"
    ):
        await checks.check(GOOD, model)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_tokenizer_without_grammars_is_named() -> None:
    checks = GrammarChecks(small_tokenizers.metaspace().to_str, "text", lambda: [status(MODEL)])
    with pytest.raises(
        InvalidRequestError, match=r"^structured_outputs: must be absent: no grammars"
    ):
        await checks.check(GOOD, MODEL)
    await checks.close()


def test_limits_leave_a_worker_room() -> None:
    """What does not overflow here must not overflow there, where it would end the process."""
    assert 8 * LIMITS.max_stack_bytes <= STACK_BYTES
