"""What llama.cpp makes of strings under each name of tokenizer.ggml.pre: stored, as bytes.

`python -m tests.gguf_splits write DIR` writes a file of a made-up vocabulary for each name, and
the strings. `python tests/gguf_splits.py record DIR`, in an environment with llama-cpp-python,
prints what tests/gguf_splits.json holds: a byte of the digest of each string's ids, by name.
"""

import base64
import json
import random
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

SEED = 7
STORED = Path(__file__).with_suffix(".json")
_ALPHABET = (
    *"abcxYZ   '0123456789.,!?-_/\r\n\t$(<|`",
    *("'s", "'LL", "  ", "é", "e\u0301", "É", "ñ", "λ", "Ж", "ж", "٣", "½", "\u00a0", "\u3000"),
    *("中文", "日本", "カナ", "한국", "\uff0c", "…", "😀", "नि"),
)


def strings(count: int = 2000) -> list[str]:
    """Return strings of digits, blanks, contractions and scripts, drawn by SEED."""
    rng = random.Random(SEED)
    return ["".join(rng.choices(_ALPHABET, k=rng.randint(1, 30))) for _ in range(count)]


def vocabulary() -> dict[str, Any]:
    """Return tokens and merges of those strings undivided, so that merges cross any boundary."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = spell
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    backend.train_from_iterator(strings(), trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokens": tokens,
        "merges": [" ".join(pair) for pair in model["merges"]],
        "token_type": [3, *[1] * (len(tokens) - 1)],
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def digest(ids: list[int]) -> int:
    """Return one byte of the digest of ids."""
    return sha256(json.dumps(ids).encode()).digest()[0]


def stored() -> dict[str, bytes]:
    """Return the bytes that llama.cpp's ids gave, by name."""
    rows = json.loads(STORED.read_text())["rows"]
    return {name: base64.b64decode(row["bytes"]) for row in rows for name in row["names"]}


def write(directory: Path) -> None:
    """Write the files that record reads."""
    import gguf

    from quire.gguf_pretokenizers import PRE_TOKENIZERS

    (directory / "strings.json").write_text(json.dumps(strings()))
    values = vocabulary()
    for name in PRE_TOKENIZERS:
        writer = gguf.GGUFWriter(str(directory / f"{name}.gguf"), "llama")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list(values["tokens"])
        writer.add_token_merges(values["merges"])
        writer.add_token_types(values["token_type"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()


def record(directory: Path) -> None:
    """Print what llama.cpp makes of the strings, with the names of equal results in one row."""
    import llama_cpp

    texts = [text.encode() for text in json.loads((directory / "strings.json").read_text())]
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    ids = (llama_cpp.llama_token * 400)()
    rows: dict[str, list[str]] = {}
    for path in sorted(directory.glob("*.gguf")):
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        assert model, path
        vocab = llama_cpp.llama_model_get_vocab(model)
        found = bytearray()
        for text in texts:
            count = llama_cpp.llama_tokenize(vocab, text, len(text), ids, len(ids), False, True)
            found.append(digest(ids[:count]))
        rows.setdefault(base64.b64encode(found).decode(), []).append(path.stem)
        llama_cpp.llama_model_free(model)
    named = [{"names": names, "bytes": found} for found, names in rows.items()]
    print(json.dumps({"llama-cpp-python": llama_cpp.__version__, "rows": named}, indent=1))


if __name__ == "__main__":
    {"write": write, "record": record}[sys.argv[1]](Path(sys.argv[2]))
