"""Reading the tokenizer of a model directory, or of a GGUF file."""

import codecs
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.contract.errors import ModelLoadError
from quire.gguf_file import find_gguf
from quire.gguf_tokenizer import load_gguf_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerBase

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
_READ_AT_ONCE_BYTES = 2**20
# What the tokens of some tokenizer are in; tokenizer_config.json is about them.
_CONFIG = "tokenizer_config.json"
_VOCABULARIES = (
    *("tokenizer*.json", "*vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken", "*.bpe"),
    *("tekken.json", "*.tokenizer"),
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
    require_tokenizer(directory)
    plain = _load_plain(directory)
    if plain is None:
        plain = _load_with_transformers(directory).backend_tokenizer
    return plain


def require_tokenizer(directory: Path) -> None:
    """Return if a directory has what some tokenizer is read from.

    Raises:
        ModelLoadError: it has not.
    """
    found = (path.name for each in _VOCABULARIES for path in directory.glob(each))
    if all(name == _CONFIG for name in found):
        raise ModelLoadError(
            f"tokenizer.json: must be in {directory}, or else tokenizer.model or vocab.json, got "
            "none: copy the tokenizer's files of the model that this one was made from"
        )


def check_tokenizer_json(directory: Path) -> None:
    """Return if the tokenizer.json of a directory is whole, as far as that shows at once.

    Raises:
        ModelLoadError: it is not; nothing is raised where there is none.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():  # as of a GGUF file, or of a vocabulary in another format
        return
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8).strip()
        # Reading some MB takes Python a second; what was cut off has another end.
        is_whole = content[:1] + content[-1:] == b"{}"
        if is_whole and len(content) <= _READ_AT_ONCE_BYTES:
            json.loads(content)
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        is_whole = False
    if not is_whole:
        raise ModelLoadError(f"{path}: must be a whole JSON object, got another; fetch it again")


def eos_token_id(directory: Path, ask_class: bool) -> int | None:
    """Return the token that ends a text, as the tokenizer of a directory has it; None for none.

    Args:
        directory: of the model.
        ask_class: whether to read, where the files name no such token, that of the tokenizer's
            class; transformers knows it, whose imports take seconds.
    """
    config = _json_object(directory / _CONFIG)
    named = {**_json_object(directory / "special_tokens_map.json"), **config}
    try:
        require_tokenizer(directory)
        if "eos_token" not in named:
            is_plain = config.get("tokenizer_class") in _PLAIN_CLASSES
            if is_plain or not ask_class:
                return None
            number: int | None = _load_with_transformers(directory).eos_token_id
            return number
        token = named["eos_token"]
        text = token.get("content") if isinstance(token, dict) else token
        return _token_id(directory, config, text) if isinstance(text, str) else None
    except ModelLoadError:
        return None  # the router will report it


def _token_id(directory: Path, config: dict[str, Any], text: str) -> int | None:
    """Return the id of a special token, None if there is none."""
    added = config.get("added_tokens_decoder")
    for number, token in added.items() if isinstance(added, dict) else ():
        if isinstance(token, dict) and token.get("content") == text and number.isdecimal():
            return int(number)
    try:
        backend = _read(directory / "tokenizer.json")
    except Exception:  # absent, or broken
        backend = load_backend(str(directory))
    found: int | None = backend.token_to_id(text)
    return found


def _read(path: Path) -> "Backend":
    """Return the tokenizer of a tokenizer.json, whose byte order mark says nothing."""
    from tokenizers import Tokenizer as Backend

    backend: Backend = Backend.from_buffer(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    return backend


def _json_object(path: Path) -> dict[str, Any]:
    """Return what a file holds; nothing if that is no JSON object, or there is no file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _load_plain(directory: Path) -> "Backend | None":
    """Return the tokenizer of tokenizer.json, or None if that may not be all there is to it."""
    try:
        config = json.loads((directory / _CONFIG).read_text(encoding="utf-8-sig"))
        if not isinstance(config, dict) or config.get("tokenizer_class") not in _PLAIN_CLASSES:
            return None
        others = [directory / name for name in ("special_tokens_map.json", "added_tokens.json")]
        if not config.keys() <= set(_HARMLESS) or any(path.exists() for path in others):
            return None
        backend = _read(directory / "tokenizer.json")
    except Exception:  # tokenizers raises no narrower one
        return None  # transformers reads the same files, and reports what is wrong with them
    return backend if _are_special(backend, config) else None


def _are_special(backend: "Backend", config: dict[str, Any]) -> bool:
    """Return whether the special tokens of a configuration are those of tokenizer.json."""
    known = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    named = [config[key] for key in _SPECIAL_TOKENS if config.get(key) is not None]
    # Described by more than its text, a token may have to be changed.
    return all(isinstance(token, str) and token in known for token in named)


def load_tokenizer(model: Path) -> "PreTrainedTokenizerBase":
    """Return the tokenizer of a directory or of a GGUF file, as users of transformers know it.

    Raises:
        ModelLoadError: there is none that can be used.
    """
    gguf = find_gguf(model)
    return _load_with_transformers(model) if gguf is None else load_gguf_tokenizer(gguf)


def _load_with_transformers(directory: Path) -> "PreTrainedTokenizerBase":
    """Return the tokenizer that transformers makes.

    Raises:
        ModelLoadError: it makes none, or none of the library tokenizers.
    """
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
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # transformers raises whatever its many readers raise; all of it means the same to the
        # operator.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelLoadError(f"cannot load the tokenizer of {directory}: {reason}") from error
    if not tokenizer.is_fast:
        raise ModelLoadError(
            f"cannot load the tokenizer of {directory}: {type(tokenizer).__name__} is not a fast "
            "one"
        )
    return tokenizer
