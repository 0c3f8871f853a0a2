"""The proof that the numerics id of a model of the fallback needs, and where its result is kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.olmo.modeling_olmo import OlmoMLP

from quire.contract.engine_options import LoadOptions
from quire.contract.workers import LoadSpec
from tests.factories import FALLBACKS, save_model
from worker_svc.loading import fallback_proof
from worker_svc.loading.loader import LoadedModel, load_model
from worker_svc.models import attention_interface, small_proof
from worker_svc.models.fallback import FallbackForCausalLM
from worker_svc.parallel.group import ParallelGroup

LOST = "its streams are not moved or resumed as equal"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/quire/proofs"


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(fallback_proof.log, "warning", lambda event, **what: found.append(what))
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", FALLBACKS["olmo"]())
    return tmp_path / "model"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Architectures of which a small model was tried."""
    found: list[str] = []

    def find_fault(config: Any, *others: Any) -> str | None:
        found.append(config.architectures[0])
        return small_proof.find_fault(config, *others)

    monkeypatch.setattr(fallback_proof, "find_fault", find_fault)
    return found


def load(directory: Path, **options: Any) -> LoadedModel:
    chosen = LoadOptions(dtype="float32", **options)
    return load_model(LoadSpec(str(directory), chosen), "", ParallelGroup())


def in_longer_texts(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Any:
    """Return attention whose result is changed where a sequence has over 64 tokens.

    Args:
        change: gets what is attended, and the number of rows of the step.
    """
    attend = attention_interface.paged_attention

    def attend_otherwise(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        out, _ = attend(*args, **kwargs)
        metadata, _ = attention_interface._step.get()
        if int(metadata.seq_lens.max()) > 64:
            out = change(out, metadata.num_tokens)
        return out, None

    return attend_otherwise


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda out, rows: out * 1.5, "its logits are off by"),
        (lambda out, rows: out * (1 + 1e-6 * (rows > 320)), "bits depend on company"),
        (lambda out, rows: out * (1 + 1e-6 * (rows in {70, 74})), "bits depend on chunks"),
    ],
)
def test_what_changes_behind_64_tokens_is_found_on_a_small_model(
    change: Callable[[torch.Tensor, int], torch.Tensor],
    fault: str,
    directory: Path,
    warnings: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load(directory).info.numerics_id
    fallback_proof.cache_dir("proofs").rename(directory.parent / "proofs before")
    monkeypatch.setattr(attention_interface, "paged_attention", in_longer_texts(change))
    assert load(directory).info.numerics_id == ""
    (warning,) = warnings
    assert warning["reason"].startswith(f"a small model of its layers, in float32: {fault}")
    assert warning["architecture"] == "OlmoForCausalLM"
    assert warning["lost"] == LOST


def test_a_sequence_recomputed_in_other_blocks_is_tried(
    directory: Path, warnings: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = attention_interface.paged_attention

    def by_block(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        out, _ = attend(*args, **kwargs)
        metadata, _ = attention_interface._step.get()
        return out * (1 + 1e-6 * (metadata.block_tables.shape[1] == 7)), None

    monkeypatch.setattr(attention_interface, "paged_attention", by_block)
    assert load(directory).info.numerics_id == ""
    assert [each["reason"] for each in warnings] == [
        "a small model of its layers, in float32: bits depend on blocks"
    ]


def test_a_model_of_which_no_small_one_can_be_run_has_no_id(
    directory: Path, warnings: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no such\nsize")

    monkeypatch.setattr(small_proof, "random_model", fail)
    assert load(directory).info.numerics_id == ""
    assert warnings[0]["reason"].startswith("no small model of its layers can be run: no such")
    assert "\n" not in warnings[0]["reason"]


def test_a_result_is_kept_and_names_what_it_was_made_of(
    directory: Path, tmp_path: Path, cache: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(directory).info
    assert runs == ["OlmoForCausalLM"]
    assert load(directory).info == first
    assert len(runs) == 1, "the result was kept"
    # Of other weights the small model is the same one; of another configuration, code or type not.
    torch.manual_seed(5)
    save_model(tmp_path / "other", FALLBACKS["olmo"]())
    load(tmp_path / "other")
    assert len(runs) == 1
    save_model(tmp_path / "clipped", FALLBACKS["olmo"](clip_qkv=2.5))
    load(tmp_path / "clipped")
    assert len(runs) == 2
    monkeypatch.setattr(fallback_proof, "_code", lambda: "other code")
    load(directory)
    assert len(runs) == 3
    for path in cache.iterdir():
        path.write_text("{half")
    assert load(directory).info == first
    assert len(runs) == 4, "what cannot be read is made again"


def test_a_fault_is_kept_too(
    directory: Path,
    runs: list[str],
    warnings: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        attention_interface, "paged_attention", in_longer_texts(lambda out, rows: out * 1.5)
    )
    for _ in range(2):
        assert load(directory).info.numerics_id == ""
    assert len(runs) == 1
    assert warnings[0]["reason"] == warnings[1]["reason"]
    assert [each["small_model"] for each in warnings] == ["run", "kept"]


def test_a_cache_that_cannot_be_written_is_no_error(
    directory: Path, tmp_path: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert load(directory).info.numerics_id
    assert len(runs) == 2


def test_a_user_without_a_home_is_no_error(
    directory: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert load(directory).info.numerics_id
    assert len(runs) == 1


def test_weights_that_were_loaded_are_proved_each_time(
    directory: Path, warnings: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(directory).info.numerics_id
    forward = OlmoMLP.forward

    def count_rows(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = forward(self, x)
        return rows * (1 + 1e-6 * rows.shape[-2])

    monkeypatch.setattr(OlmoMLP, "forward", count_rows)
    assert load(directory).info.numerics_id == ""
    assert [each["reason"] for each in warnings] == ["bits depend on company"]


def test_a_draft_model_does_not_pay_for_a_proof(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved: list[str] = []

    def keeps_bits(model: FallbackForCausalLM, *_: Any) -> bool:
        proved.append(model.architecture)
        return True

    monkeypatch.setattr(fallback_proof, "keeps_bits", keeps_bits)
    loaded = load(directory, draft_model=str(directory))
    assert proved == ["OlmoForCausalLM"], "of the model itself"
    assert loaded.info.numerics_id
    assert loaded.draft is not None
    assert loaded.draft.info.numerics_id == ""
