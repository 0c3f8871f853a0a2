"""The text id of a model: equal where text becomes the same tokens, tokens text, grammars masks."""

from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from quire.gguf_file import GgufFile, find_gguf
from quire.grammar import grammar_version

# To be raised when prompts, text, what ends it or masks come out otherwise for the same files.
TEXT_VERSION = 5
ID_BYTES = 16
# What tokenizers and chat templates are read from, by transformers too.
_PATTERNS = (
    "tokenizer*",
    "*token*.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates/*",
)


def text_id(model: Path) -> str:
    """Return the text id of a model directory or file, in hexadecimal; "" if it has no tokenizer.

    It covers names and contents of the files of tokenizer and chat template, TEXT_VERSION, and the
    versions of llguidance and tokenizers; of a GGUF file the metadata of both.

    Raises:
        ModelLoadError: a GGUF file that cannot be read.
    """
    versions = f"quire text {TEXT_VERSION} {grammar_version()} {_tokenizers_version()}"
    gguf = find_gguf(model)
    if gguf is not None:
        stored = GgufFile(gguf).text_digest()
        named = f"{versions}\0{stored}".encode()
        return sha256(named).digest()[:ID_BYTES].hex() if stored else ""
    paths = {path for pattern in _PATTERNS for path in model.glob(pattern) if path.is_file()}
    if not paths:
        return ""
    digest = sha256(versions.encode())
    for path in sorted(paths):
        content = sha256(path.read_bytes()).hexdigest()
        digest.update(f"\0{path.relative_to(model).as_posix()}\0{content}".encode())
    return digest.digest()[:ID_BYTES].hex()


def _tokenizers_version() -> str:
    """Return the version of what makes tokens of text; "" where it is not installed."""
    try:
        return version("tokenizers")
    except PackageNotFoundError:
        return ""
