"""A worker on each card that the emulator plays: caches, kinds and ids are those of the card."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.emu.card_worker import NUM_TOKENS, Found, serve
from tests.emu.conftest import IS_EMULATED
from tests.factories import CONFIGS, save_model

pytestmark = pytest.mark.skipif(not IS_EMULATED, reason="only the emulator plays several cards")

# Capability and multiprocessors: CUDA C++ Programming Guide, Compute Capabilities; data sheets.
CARDS = {
    "small": ("sm_90", 4),
    "A100": ("sm_80", 108),
    "L4": ("sm_89", 58),
    "4090": ("sm_89", 128),
    "H100": ("sm_90", 132),
    "B200": ("sm_100", 148),
}
WITHOUT_FLOAT8 = {"A100"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Found]]:
    """What a worker did on each card, in a process each."""
    model = tmp_path_factory.mktemp("model")
    save_model(model, CONFIGS["llama"](head_dim=64, num_hidden_layers=1))
    spawn, of_card = multiprocessing.get_context("spawn"), {}
    for card in CARDS:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("QUIRE_EMULATED_DEVICE", card)
            with ProcessPoolExecutor(1, spawn) as process:
                of_card[card] = process.submit(serve, model).result()
    yield of_card


@pytest.mark.parametrize("card", CARDS)
def test_a_worker_describes_its_card(found: dict[str, Found], card: str) -> None:
    isa, num_multiprocessors = CARDS[card]
    assert found[card].isa == isa
    assert found[card].gpu == f"emulated {card}, {num_multiprocessors} multiprocessors"


@pytest.mark.parametrize("card", CARDS)
def test_float8_caches_are_served_where_the_card_converts_them(
    found: dict[str, Found], card: str
) -> None:
    offered = () if card in WITHOUT_FLOAT8 else ("torch.float8_e4m3fn",)
    assert found[card].kv_cache_dtypes == offered
    assert ("fp8" in found[card].tokens) is bool(offered)
    for tokens in found[card].tokens.values():
        assert len(tokens) == NUM_TOKENS


def test_a_card_without_float8_refuses_it_by_name(found: dict[str, Found]) -> None:
    refusal = "kv_cache_dtype: must be one of auto on cuda:0, got 'fp8'"
    assert {card: each.refusals for card, each in found.items() if each.refusals} == {
        card: {"fp8": refusal} for card in WITHOUT_FLOAT8
    }


def test_a_numerics_id_is_of_one_generation_of_cards(found: dict[str, Found]) -> None:
    generations = {(each.isa, each.numerics_ids["auto"]) for each in found.values()}
    assert all(numerics_id for _, numerics_id in generations)
    num_generations = len({isa for isa, _ in CARDS.values()})
    assert len(generations) == num_generations
    assert len({numerics_id for _, numerics_id in generations}) == num_generations


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_a_token_is_the_same_on_every_card(found: dict[str, Found], kv_cache_dtype: str) -> None:
    """With `--invariant`: how work is split among multiprocessors changes no bit."""
    served = [
        each.tokens[kv_cache_dtype] for each in found.values() if kv_cache_dtype in each.tokens
    ]
    assert len(served) == len(CARDS) - len(WITHOUT_FLOAT8 if kv_cache_dtype == "fp8" else ())
    assert all(tokens == served[0] for tokens in served)
