"""Where the files of a model come from: a name's revision, another tokenizer, a changed config."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.model_names import TEXTS, find_model, find_tokenizer
from quire.cache_dir import cache_dir
from quire.contract.errors import ConfigError
from quire.contract.options import Options, option
from router.front_options import json_object

_CONFIG = "config.json"
# Of TEXTS, those that are no tokenizer's.
_NOT_OF_TOKENIZERS = (_CONFIG, "generation_config.json")


@dataclass(frozen=True, kw_only=True)
class ModelSource(Options):
    """What is to be served beside a path or a name; names are vLLM's."""

    PANEL = "Model"

    revision: str | None = option(
        None,
        "Branch, tag or commit of a model that is named, in Hugging Face's local cache.",
        shown_default="main",
    )
    download_dir: Path | None = option(
        None,
        "Hugging Face's local cache.",
        metavar="DIRECTORY",
        shown_default="that of HF_HUB_CACHE or HF_HOME",
    )
    tokenizer: str | None = option(
        None,
        "Directory or name of a model whose tokenizer and chat template take the place of this "
        "model's.",
        metavar="MODEL",
        shown_default="the model's",
    )
    tokenizer_revision: str | None = option(
        None, "Branch, tag or commit of --tokenizer, where it is a name.", shown_default="main"
    )
    hf_overrides: str = option(
        "",
        "Values that take the place of those in config.json, as a JSON object.",
        metavar="JSON",
        shown_default="none",
    )

    def path_of(self, model: str | Path) -> Path:
        """Return the directory or the file to serve: the model's, or one of links to its files.

        Args:
            model: directory, GGUF file, or name in Hugging Face's local cache.

        Raises:
            ConfigError: it is not here, or cannot have what is asked for.
        """
        if self.tokenizer_revision is not None and self.tokenizer is None:
            raise ConfigError("tokenizer_revision: must be given with tokenizer, got none")
        path = find_model(model, self.revision, self.download_dir)
        overrides = json_object("hf_overrides", self.hf_overrides) if self.hf_overrides else {}
        tokenizer = None
        if self.tokenizer is not None and Path(self.tokenizer).resolve() != Path(model).resolve():
            tokenizer = find_tokenizer(self.tokenizer, self.tokenizer_revision, self.download_dir)
            if not tokenizer.is_dir():
                raise ConfigError(f"tokenizer: must be a directory that exists, got {tokenizer}")
        if tokenizer is None and not overrides:
            return path
        if not (path / _CONFIG).is_file():
            name = "hf_overrides" if overrides else "tokenizer"
            raise ConfigError(
                f"{name}: must be absent unless the model is a directory with a config.json, "
                f"got {model}"
            )
        return _combined(path, tokenizer, overrides)


def _combined(model: Path, tokenizer: Path | None, overrides: dict[str, Any]) -> Path:
    """Return a directory of links to a model's files with another tokenizer, or another config.

    It lies in the cache under the digest of what it holds, so that every process of a cluster, and
    the next one, finds it there.
    """
    files = {each.name: each.resolve() for each in model.iterdir()}
    if tokenizer is not None:
        for each in _tokenizer_files(model):
            del files[each.name]
        files |= {each.name: each.resolve() for each in _tokenizer_files(tokenizer)}
    config = _overridden(files.pop(_CONFIG), overrides) if overrides else ""
    digest = hashlib.sha256(config.encode())
    for name, path in sorted(files.items()):
        digest.update(f"\0{name}\0{path}".encode())
    found = cache_dir("combined") / digest.hexdigest()[:16] / model.resolve().name
    if found.is_dir():
        return found
    try:
        found.parent.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=found.parent.parent, prefix=".making-"))
        try:
            directory = scratch / found.name
            directory.mkdir()
            for name, path in files.items():
                (directory / name).symlink_to(path)
            if config:
                (directory / _CONFIG).write_text(config, "utf-8")
            scratch.rename(found.parent)
        except OSError:
            shutil.rmtree(scratch, ignore_errors=True)
            if not found.is_dir():  # and nobody else has made it meanwhile
                raise
    except OSError as error:
        raise ConfigError(f"XDG_CACHE_HOME: must be writable: {error}") from None
    return found


def _tokenizer_files(model: Path) -> Iterable[Path]:
    names = {
        path
        for pattern in TEXTS
        if pattern not in _NOT_OF_TOKENIZERS
        for path in model.glob(pattern.partition("/")[0])
    }
    return sorted(names)


def _overridden(path: Path, overrides: dict[str, Any]) -> str:
    """Return config.json with other values; those of a config within it count one by one."""
    config = json_object(_CONFIG, path.read_text(encoding="utf-8-sig"))
    for name, value in overrides.items():
        inner = config.get(name)
        is_config = name.endswith("_config") and name != "quantization_config"
        if is_config and isinstance(inner, dict) and isinstance(value, dict):
            inner.update(value)
        else:
            config[name] = value
    return json.dumps(config, indent=2, sort_keys=True)
