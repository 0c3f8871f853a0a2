"""The tokenizer of a GGUF file, which transformers makes of its metadata."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.contract.errors import ModelLoadError
from quire.gguf_file import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_PREFIX = "tokenizer."
# Their texts begin with beginning-of-text where the file does not say: as llama.cpp has it.
_BEGIN_OF_TEXT = ("llama3", "llama-v3", "llama-bpe")
# What llama.cpp splits as GPT-2 does, as transformers does where it knows no other way.
_LIKE_GPT2 = ("default", "gpt-2")
_SPECIAL_TOKENS = {
    "bos_token": "ggml.bos_token_id",
    "eos_token": "ggml.eos_token_id",
    "unk_token": "ggml.unknown_token_id",
    "pad_token": "ggml.padding_token_id",
}


def load_gguf_tokenizer(path: Path) -> "PreTrainedTokenizerFast":
    """Return the tokenizer of a GGUF file, with its chat template.

    Not by way of AutoTokenizer, which reads the file with torch.

    Raises:
        ModelLoadError: the file has none, or one of a kind that is not served.
    """
    file = GgufFile(path)
    metadata = {
        key.removeprefix(_PREFIX): value
        for key, value in file.metadata.items()
        if key.startswith(_PREFIX)
    }
    architecture = file.metadata.get("general.architecture", "")
    try:
        from transformers import PreTrainedTokenizerFast
        from transformers.integrations.gguf.gguf_tokenizer_mapping import (
            GGUF_PRE_TOKENIZER_SPLITS,
            GGUF_TOKENIZER_MAPPING,
            convert_gguf_tokenizer,
        )
    except ImportError:  # as in the small image of the router
        raise ModelLoadError(
            f"cannot load the tokenizer of {path}: that of a GGUF file needs transformers, which "
            "is not installed here; the image quire-router-transformers has it"
        ) from None
    kind, split = metadata.get("ggml.model"), metadata.get("ggml.pre", "default")
    if kind not in ("llama", "gpt2"):
        raise ModelLoadError(f"{path}: tokenizer.ggml.model: must be llama or gpt2, got {kind!r}")
    if kind == "gpt2" and split not in (*_LIKE_GPT2, *GGUF_PRE_TOKENIZER_SPLITS):
        known = ", ".join((*_LIKE_GPT2, *GGUF_PRE_TOKENIZER_SPLITS))
        raise ModelLoadError(f"{path}: tokenizer.ggml.pre: must be one of {known}, got {split!r}")
    names = GGUF_TOKENIZER_MAPPING["tokenizer"]
    try:
        backend, _ = convert_gguf_tokenizer(
            architecture, {names[key]: metadata[key] for key in names if key in metadata}
        )
        tokens = metadata["ggml.tokens"]
        options: dict[str, Any] = {
            name: tokens[metadata[key]] for name, key in _SPECIAL_TOKENS.items() if key in metadata
        }
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=backend,
            add_bos_token=metadata.get(
                "ggml.add_bos_token", kind == "llama" or split in _BEGIN_OF_TEXT
            ),
            add_eos_token=metadata.get("ggml.add_eos_token", False),
            chat_template=metadata.get("chat_template"),
            **options,
        )
    except Exception as error:
        # transformers raises whatever its converters raise; all of it means the same to the
        # operator.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelLoadError(f"cannot load the tokenizer of {path}: {reason}") from error
