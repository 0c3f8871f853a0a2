"""The text id of a model: equal where text becomes the same tokens, and tokens text."""

from hashlib import sha256
from pathlib import Path

from quire.gguf_file import GgufFile, find_gguf

# To be raised when prompts, text or what ends it come out otherwise for the same files.
TEXT_VERSION = 1
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

    It covers names and contents of the files of tokenizer and chat template, and TEXT_VERSION; of
    a GGUF file the metadata of both.

    Raises:
        ModelLoadError: a GGUF file that cannot be read.
    """
    gguf = find_gguf(model)
    if gguf is not None:
        stored = GgufFile(gguf).text_digest()
        named = f"quire text {TEXT_VERSION}\0{stored}".encode()
        return sha256(named).digest()[:ID_BYTES].hex() if stored else ""
    paths = {path for pattern in _PATTERNS for path in model.glob(pattern) if path.is_file()}
    if not paths:
        return ""
    digest = sha256(f"quire text {TEXT_VERSION}".encode())
    for path in sorted(paths):
        content = sha256(path.read_bytes()).hexdigest()
        digest.update(f"\0{path.relative_to(model).as_posix()}\0{content}".encode())
    return digest.digest()[:ID_BYTES].hex()
