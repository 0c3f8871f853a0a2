"""The text id of a model directory: equal where text becomes the same tokens, and tokens text."""

from hashlib import sha256
from pathlib import Path

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


def text_id(directory: Path) -> str:
    """Return the text id of a model directory, in hexadecimal; "" if it has no tokenizer.

    It covers names and contents of the files of tokenizer and chat template, and TEXT_VERSION.
    """
    paths = {path for pattern in _PATTERNS for path in directory.glob(pattern) if path.is_file()}
    if not paths:
        return ""
    digest = sha256(f"quire text {TEXT_VERSION}".encode())
    for path in sorted(paths):
        content = sha256(path.read_bytes()).hexdigest()
        digest.update(f"\0{path.relative_to(directory).as_posix()}\0{content}".encode())
    return digest.digest()[:ID_BYTES].hex()
