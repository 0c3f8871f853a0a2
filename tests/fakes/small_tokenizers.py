"""Small tokenizers of the kinds that models use, trained on the spot."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The list class has methods to append, extend, insert and sort items in place.",
    "Return a copy of the string with all the cased characters converted to lowercase.",
    "naïve café, Straße, Ωμέγα, привет мир, 中文字符, 日本語, 한국어, עברית, e\u0301a\u0308",
    "emoji: 😀 👩‍👩‍👧 🇩🇪 ✈️ — “quotes” … and\ttabs\nand lines",
] * 4


def byte_level(vocab_size: int = 480) -> Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3 and Qwen have it; ids 0 and 1 are special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """BPE over ASCII, single bytes for the rest, as Llama 2 has it; ids 0 to 2 are special."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = _spaces_to_blocks()
    ascii_only = [line for line in CORPUS if line.isascii()]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], show_progress=False
    )
    trained.train_from_iterator(ascii_only, trainer)
    vocabulary = trained.get_vocab()
    merges = []
    for token in sorted(vocabulary, key=vocabulary.__getitem__):
        if len(token) > 1 and not token.startswith("<"):
            cut = next(
                i
                for i in range(1, len(token))
                if token[:i] in vocabulary and token[i:] in vocabulary
            )
            merges.append((token[:cut], token[cut:]))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = _spaces_to_blocks()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """Unigram pieces with the Metaspace decoder, as T5 has them: neither of the kinds above."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _spaces_to_blocks() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def save(tokenizer: Tokenizer, directory: Path) -> Path:
    """Write what AutoTokenizer reads; return the directory."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(directory)
    return directory
