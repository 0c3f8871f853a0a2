"""From a loaded model to what obeys grammars: the tokenizer beside its weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from quire.contract.errors import ModelLoadError
from quire.grammar import open_vocabulary
from quire.tokenizer_files import load_backend
from worker_svc.loading.loader import LoadedModel
from worker_svc.sampling.grammars import Grammars

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def grammars_of(loaded: LoadedModel) -> Grammars | None:
    """Return what obeys the grammars of a model's sequences; None on ranks above 0.

    Its tokenizer is read by a thread. If it has none, sequences with a grammar fail, one by one:
    routers place none at such a cell.
    """
    if loaded.parallel.rank != 0:
        return None
    info = loaded.info

    def open_() -> "LLTokenizer":
        if not info.text_id or not info.eos_token_ids:
            raise ModelLoadError("no grammars for a model without tokenizer or end-of-text id")
        backend = load_backend(str(Path(loaded.spec.model)))
        return open_vocabulary(backend, info.vocab_size, info.eos_token_ids)

    return Grammars(open_, info.vocab_size, info.eos_token_ids)
