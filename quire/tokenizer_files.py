"""Reading the tokenizer of a model directory, or of a GGUF file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.contract.errors import ModelLoadError
from quire.gguf_file import find_gguf
from quire.gguf_tokenizer import load_gguf_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Classes of transformers that take tokenizer.json as it is; all others build or change something.
_PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
# What a plain one does not change tokenizer.json by, as long as its tokens are special there too.
_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_HARMLESS = (
    *_SPECIAL_TOKENS,
    "backend",
    "chat_template",
    "clean_up_tokenization_spaces",
    "is_local",
    "local_files_only",
    "model_input_names",
    "model_max_length",
    "padding_side",
    "tokenizer_class",
    "truncation_side",
)


def load_backend(model: str) -> "Backend":
    """Read the tokenizer of a model. It means here what it means to transformers.

    Where transformers would take tokenizer.json as it is, so do we, in milliseconds; its imports
    alone take seconds.

    Raises:
        ModelLoadError: there is none that can be used.
    """
    directory = Path(model)
    gguf = find_gguf(directory)
    if gguf is not None:
        backend: Backend = load_gguf_tokenizer(gguf).backend_tokenizer
        return backend
    return _load_plain(directory) or _load_with_transformers(directory)


def _load_plain(directory: Path) -> "Backend | None":
    """Return the tokenizer of tokenizer.json, or None if that may not be all there is to it."""
    from tokenizers import Tokenizer as Backend

    try:
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict) or config.get("tokenizer_class") not in _PLAIN_CLASSES:
            return None
        others = [directory / name for name in ("special_tokens_map.json", "added_tokens.json")]
        if not config.keys() <= set(_HARMLESS) or any(path.exists() for path in others):
            return None
        backend = Backend.from_file(str(directory / "tokenizer.json"))
    except Exception:
        return None  # transformers will report what is wrong with it
    return backend if _are_special(backend, config) else None


def _are_special(backend: "Backend", config: dict[str, Any]) -> bool:
    """Return whether the special tokens of a configuration are those of tokenizer.json."""
    known = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    named = [config[key] for key in _SPECIAL_TOKENS if config.get(key) is not None]
    # Described by more than its text, a token may have to be changed.
    return all(isinstance(token, str) and token in known for token in named)


def _load_with_transformers(directory: Path) -> "Backend":
    try:
        from transformers import AutoTokenizer  # seconds of imports: only here, only in a thread
    except ImportError:  # as in the small image of the router
        raise ModelLoadError(
            f"cannot load the tokenizer of {directory}: it is more than its tokenizer.json, so it "
            "needs transformers, which is not installed here; the image quire-router-transformers "
            "has it"
        ) from None
    try:
        # Said outright: without it transformers asks at a terminal whether to run the model's code.
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # transformers raises whatever its many readers raise; all of it means the same to the
        # operator.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelLoadError(f"cannot load the tokenizer of {directory}: {reason}") from error
    if not tokenizer.is_fast:
        raise ModelLoadError(
            f"cannot load the tokenizer of {directory}: {type(tokenizer).__name__} is not a fast "
            "one"
        )
    backend: Backend = tokenizer.backend_tokenizer
    return backend
