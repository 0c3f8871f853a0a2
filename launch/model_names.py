"""Models by name: those that a package holds, and those of Hugging Face's local cache.

Nothing here goes over the network: `quire pull` and `quire run` do, services never do.
"""

import re
from pathlib import Path

from launch.packaged_models import PACKAGED_MODELS
from quire.contract.errors import ConfigError
from quire.gguf_file import is_model

# What Quire reads of a repository. Weights in other formats, of other frameworks, and code are not.
WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
TEXTS = (
    *("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab*", "merges.txt", "*.model", "*.tiktoken"),
    *("chat_template*", "additional_chat_templates/*.jinja"),
)
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(rf"{_PART}(/{_PART})?")


def is_name(model: str) -> bool:
    """Return whether a text could be the name of a model: NAME or OWNER/NAME."""
    return _NAME.fullmatch(model) is not None


def check_given(model: str | Path) -> None:
    """Check that MODEL is not empty, as of a variable that is not set: that is no path of one.

    Raises:
        ConfigError: it is.
    """
    if not str(model):
        raise ConfigError("model: must not be empty, got ''")


def find_model(
    model: str | Path, revision: str | None = None, cache_dir: str | Path | None = None
) -> Path:
    """Return the path of a model: itself, or where one of that name is kept.

    Args:
        model: directory, GGUF file, name of a packaged model, or name in Hugging Face's cache.
        revision: branch, tag or commit of a name there; None for the main branch.
        cache_dir: of Hugging Face; None takes HF_HUB_CACHE, or what HF_HOME says.

    Raises:
        ConfigError: no model of that name is here; says what would bring it.
    """
    check_given(model)
    path = Path(model)
    if is_model(path) or not is_name(str(model)):
        return path
    if packaged := PACKAGED_MODELS.get(str(model)):
        if not packaged.path.is_file():
            raise ConfigError(
                f"model: {model} is not here yet: `quire run {model}` fetches it "
                f"({packaged.megabytes} MB) and chats"
            )
        return packaged.path
    found = _find_cached(str(model), revision, cache_dir)
    if found is None:
        name = f"{model}@{revision}" if revision else str(model)
        raise ConfigError(
            "model: must be a directory or a .gguf file that exists, or a name in Hugging Face's "
            f"local cache, got {name}: run `quire pull {name} DIR` and give DIR"
        )
    return found


def find_tokenizer(
    name: str, revision: str | None = None, cache_dir: str | Path | None = None
) -> Path:
    """Return the directory of a tokenizer, with or without a model beside it.

    Args:
        name: directory, or name in Hugging Face's cache.
        revision: branch, tag or commit of a name there; None for the main branch.
        cache_dir: as of `find_model`.

    Raises:
        ConfigError: nothing of that name is here.
    """
    if not name:
        raise ConfigError("tokenizer: must not be empty, got ''")
    path = Path(name)
    if path.is_dir():
        return path
    found = _find_cached(name, revision, cache_dir, needed="tokenizer*") if is_name(name) else None
    if found is None:
        raise ConfigError(
            "tokenizer: must be a directory that exists, or a name in Hugging Face's local cache, "
            f"got {name}"
        )
    return found


def _find_cached(
    name: str,
    revision: str | None,
    cache_dir: str | Path | None,
    needed: str = "model*.safetensors",
) -> Path | None:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError
    except ImportError:  # nothing here could have filled a cache
        return None
    try:
        directory = Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=[*WEIGHTS, *TEXTS],
                local_files_only=True,
            )
        )
    except (HFValidationError, OSError):  # its errors of what is not there are OSErrors
        return None
    # A snapshot has what was asked for once; a tokenizer alone, for instance.
    return directory if any(directory.glob(needed)) else None
