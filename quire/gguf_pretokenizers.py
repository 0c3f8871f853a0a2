"""How the texts of a byte-level GGUF tokenizer are divided into words, which merges then work on.

Each name of tokenizer.ggml.pre has patterns, applied in turn to what those before have divided:
what a pattern matches is a word, and so is what lies between two matches.

Source: src/llama-vocab.cpp of github.com/ggml-org/llama.cpp has the names, and quotes the patterns
of the models' own tokenizer.json.
"""

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("smollm",), (r"\p{N}", GPT2)),
}
