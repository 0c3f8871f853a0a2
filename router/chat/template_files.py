"""The chat templates of a model directory, or of a GGUF file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.contract.errors import ConfigError
from quire.gguf_file import GgufFile, find_gguf
from router.chat.template_render import check_syntax

# Those that are published take some 20 KiB at most.
MAX_TEMPLATE_BYTES = 2**20
DEFAULT = "default"
# UTF-8, whose byte order mark some editors write: a template's would begin every prompt.
TEXT = "utf-8-sig"
_MARK = "\ufeff"
_GGUF_TEMPLATE = "tokenizer.chat_template"
_GGUF_TOKENS = "tokenizer.ggml.tokens"
_GGUF_IDS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """What conversations are rendered with.

    Attributes:
        sources: Jinja text by name; DEFAULT, and maybe "tool_use" for requests with tools. Empty
            where the model has none.
        special_tokens: variables of the templates, such as bos_token.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, Any] = field(default_factory=dict)

    def source(self, has_tools: bool) -> str | None:
        """Return the template for a request, None where there is none."""
        if has_tools and "tool_use" in self.sources:
            return self.sources["tool_use"]
        return self.sources.get(DEFAULT)


def load_chat_templates(model: Path, file: Path | None = None) -> ChatTemplates:
    """Read the chat templates of a model, as transformers finds them.

    Args:
        model: its directory, or a GGUF file.
        file: a template that takes the place of the model's; None for none.

    Raises:
        ConfigError: `file` or a template of the model cannot be read, or one is too long.
        ModelLoadError: a GGUF file cannot be read.
    """
    gguf = find_gguf(model)
    found = _of_directory(model) if gguf is None else _of_gguf(gguf)
    if file is not None:
        found = ChatTemplates({DEFAULT: _text(file)}, found.special_tokens)
    sources = {name: source.removeprefix(_MARK) for name, source in found.sources.items()}
    found = ChatTemplates(sources, found.special_tokens)
    for name, source in sources.items():
        if len(source.encode()) > MAX_TEMPLATE_BYTES:
            raise ConfigError(
                f"chat_template: {name} must be at most {MAX_TEMPLATE_BYTES} bytes, "
                f"got {len(source.encode())}"
            )
    return found


def load_checked(model: Path, file: Path | None) -> ChatTemplates:
    """Read the chat templates of a model, and check the syntax of one that was given.

    Args:
        model: as of `load_chat_templates`.
        file: likewise.

    Raises:
        ConfigError: as of `load_chat_templates`; or `file` is no template.
        ModelLoadError: a GGUF file cannot be read.
    """
    templates = load_chat_templates(model, file)
    if file is not None and (wrong := check_syntax(templates.source(False) or "")):
        raise ConfigError(f"chat_template: {file} must be a Jinja template, got {wrong}")
    return templates


def _of_gguf(path: Path) -> ChatTemplates:
    metadata = GgufFile(path).metadata
    sources = {
        key.removeprefix(_GGUF_TEMPLATE).removeprefix(".") or DEFAULT: value
        for key, value in metadata.items()
        if key.startswith(_GGUF_TEMPLATE) and isinstance(value, str)
    }
    tokens = metadata.get(_GGUF_TOKENS, [])
    numbers = {name: metadata[key] for name, key in _GGUF_IDS.items() if key in metadata}
    return ChatTemplates(
        sources,
        {
            name: tokens[number]
            for name, number in numbers.items()
            if isinstance(number, int) and 0 <= number < len(tokens)
        },
    )


def _of_directory(model: Path) -> ChatTemplates:
    """Later sources count more: those of older releases come first."""
    config = _json(model / "tokenizer_config.json")
    stored = config.get("chat_template")
    sources: dict[str, str] = {}
    if isinstance(stored, str):
        sources[DEFAULT] = stored
    elif isinstance(stored, list):
        named = [each for each in stored if isinstance(each, dict)]
        sources = {str(each.get("name")): str(each.get("template")) for each in named}
    elif isinstance(stored, dict):
        sources = {str(name): str(source) for name, source in stored.items()}
    processor = _json(model / "chat_template.json").get("chat_template")
    if isinstance(processor, str):
        sources[DEFAULT] = processor
    jinja = {}
    if (model / "chat_template.jinja").is_file():
        jinja[DEFAULT] = model / "chat_template.jinja"
    for path in sorted((model / "additional_chat_templates").glob("*.jinja")):
        jinja[path.stem] = path
    if jinja:
        # The files of one release: nothing of an older one is mixed with them.
        sources = {name: _text(path) for name, path in jinja.items()}
    special = {**_json(model / "special_tokens_map.json"), **config}
    return ChatTemplates(sources, _special_tokens(special))


def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    tokens: dict[str, Any] = {}
    for name, value in config.items():
        # A token is its text, or an object that has it.
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        tokens |= _special_tokens(extra)
    return tokens


def _text(path: Path) -> str:
    try:
        return path.read_text(TEXT)
    except UnicodeDecodeError as error:
        reason = f"must be UTF-8, got another byte at {error.start}"
        raise ConfigError(f"chat_template: {path} {reason}") from error
    except OSError as error:
        raise ConfigError(f"chat_template: {path} cannot be read: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(TEXT))
    except (OSError, ValueError, RecursionError):
        return {}  # absent, or broken: loading the tokenizer will report it
    return content if isinstance(content, dict) else {}
