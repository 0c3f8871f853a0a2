"""The tokenizer of a GGUF file, which transformers makes of its metadata."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.contract.errors import ModelLoadError
from quire.gguf_file import GgufFile
from quire.gguf_pretokenizers import OF_CHARACTERS, PRE_TOKENIZERS

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_PREFIX = "tokenizer."
_CONTROL, _USER_DEFINED = 3, 4
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
            GGUF_TOKENIZER_MAPPING,
            convert_gguf_tokenizer,
        )
    except ImportError:  # as in the small image of the router
        raise ModelLoadError(
            f"cannot load the tokenizer of {path}: that of a GGUF file needs transformers, which "
            "is not installed here; the image quire-router-transformers has it"
        ) from None
    kind, split = metadata.get("ggml.model"), metadata.get("ggml.pre")
    if kind not in ("llama", "gpt2"):
        raise ModelLoadError(f"{path}: tokenizer.ggml.model: must be llama or gpt2, got {kind!r}")
    if kind == "gpt2" and split not in PRE_TOKENIZERS:
        why = ", whose merges are of characters" if split in OF_CHARACTERS else ""
        raise ModelLoadError(
            f"{path}: tokenizer.ggml.pre: must be one of {', '.join(PRE_TOKENIZERS)}, "
            f"got {split!r}{why}"
        )
    tokens = metadata.get("ggml.tokens", [])
    special = {name: metadata[key] for name, key in _SPECIAL_TOKENS.items() if key in metadata}
    for name, number in special.items():
        if not isinstance(number, int) or not 0 <= number < len(tokens):
            raise ModelLoadError(
                f"{path}: tokenizer.{_SPECIAL_TOKENS[name]}: must be one of {len(tokens)} tokens, "
                f"got {number!r}"
            )
    names = GGUF_TOKENIZER_MAPPING["tokenizer"]
    try:
        backend, _ = convert_gguf_tokenizer(
            architecture, {names[key]: metadata[key] for key in names if key in metadata}
        )
        backend = _corrected(backend, metadata)
        tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=backend,
            add_bos_token=metadata.get(
                "ggml.add_bos_token",
                kind == "llama" or PRE_TOKENIZERS[metadata["ggml.pre"]].begins,
            ),
            add_eos_token=metadata.get("ggml.add_eos_token", False),
            chat_template=metadata.get("chat_template"),
            **{name: backend.id_to_token(number) for name, number in special.items()},
        )
    except Exception as error:
        # transformers raises whatever its converters raise; all of it means the same to the
        # operator.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelLoadError(f"cannot load the tokenizer of {path}: {reason}") from error

    found = {name: getattr(tokenizer, f"{name}_id") for name in special}
    if found != special or len(tokenizer) > len(tokens):
        raise ModelLoadError(
            f"{path}: special tokens must be {special} of {len(tokens)}, got {found} of "
            f"{len(tokenizer)}"
        )
    return tokenizer


def _corrected(backend: "Tokenizer", metadata: dict[str, Any]) -> "Tokenizer":
    """Return a tokenizer with what the conversion of transformers leaves out.

    Tokens of control are under their own texts, which it spells in bytes, and none is added that
    the file does not hold; merges and the space before a text are as the file has them.
    """
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    tokens, model = metadata["ggml.tokens"], state["model"]
    added = {each["id"]: each for each in state["added_tokens"] if each["id"] < len(tokens)}
    if metadata["ggml.model"] == "gpt2":
        texts = {number: text for text, number in model["vocab"].items()}
        for number, kind in enumerate(metadata.get("ggml.token_type", ())):
            if kind in (_CONTROL, _USER_DEFINED):
                texts[number] = tokens[number]
                options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
                added[number] = {
                    "id": number,
                    "content": tokens[number],
                    **options,
                    "special": kind == _CONTROL,
                }
        model["vocab"] = {text: number for number, text in texts.items()}
        row = PRE_TOKENIZERS[metadata["ggml.pre"]]
        model["ignore_merges"] = row.whole
        state["pre_tokenizer"] = _splits(row.patterns)
    state["added_tokens"] = [added[number] for number in sorted(added)]
    if not metadata.get("ggml.add_space_prefix", True):
        for name in ("normalizer", "pre_tokenizer", "decoder"):
            state[name] = _without_prefix(state[name])
    return Tokenizer.from_str(json.dumps(state))


def _splits(patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return the step that divides a text by each pattern in turn, and spells words in bytes."""
    splits = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in patterns
    ]
    spell = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {"type": "Sequence", "pretokenizers": [*splits, spell]}


def _without_prefix(step: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a step that neither puts a space before a text nor takes it away again."""
    if step is None or step["type"] in ("Prepend", "Strip"):
        return None
    if step["type"] == "Metaspace":
        return {**step, "prepend_scheme": "never"}
    for key in ("normalizers", "pretokenizers", "decoders"):
        if key in step:
            return {**step, key: [kept for each in step[key] if (kept := _without_prefix(each))]}
    return step
