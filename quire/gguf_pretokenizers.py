"""How the texts of a byte-level GGUF tokenizer are divided into words, which merges then work on.

Each name of tokenizer.ggml.pre has patterns, applied in turn to what those before have divided:
what a pattern matches is a word, and so is what lies between two matches.

Source: src/llama-vocab.cpp of github.com/ggml-org/llama.cpp has the names, and quotes the patterns
of the models' own tokenizer.json. Where it runs others, since its engine has no cases of letters,
these are the models' own.
"""
# ruff: noqa: RUF001 - the patterns are of such letters.

from typing import NamedTuple


class PreTokenizer(NamedTuple):
    """How texts of a name begin and are divided.

    Attributes:
        patterns: of words, for the Split of Hugging Face's tokenizers.
        begins: texts begin with beginning-of-text where the file does not say.
        whole: words that are tokens are not made of merges.
    """

    patterns: tuple[str, ...]
    begins: bool = False
    whole: bool = False


_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _BLANKS
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASIAN = "[一-龥\u0800-一가-\ud7ff]+"
_HAN_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"


def _cased(upper: str, lower: str, suffix: str) -> str:
    """Return the pattern of words in which no capital follows a small letter."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"


_DIGIT, _THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _BLANKS
_LLAMA3 = "|".join((_SUFFIX, _WORD, _THREE_DIGITS, _OTHER, _LINES))
_QWEN2 = "|".join((_SUFFIX, _WORD, _DIGIT, _OTHER, _LINES))
_QWEN35 = "|".join(
    (
        _SUFFIX,
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        _DIGIT,
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        _LINES,
    )
)
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = "|".join((_cased(_UPPER, _LOWER, ""), _DIGIT, _SLASHED, _LINES))
_GPT4O = "|".join((_cased(_UPPER, _LOWER, _SUFFIX + "?"), _THREE_DIGITS, _SLASHED, _LINES))
_YOUTU = "|".join((_cased(_UPPER, _LOWER, _SUFFIX + "?"), _DIGIT, _SLASHED, _LINES))
_KIMI = "|".join(
    (
        r"[\p{Han}]+",
        _cased(_UPPER[:-1] + r"&&[^\p{Han}]]", _LOWER[:-1] + r"&&[^\p{Han}]]", _SUFFIX + "?"),
        _THREE_DIGITS,
        _OTHER,
        _LINES,
    )
)
_MARKED = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
)
_DEEPSEEK3 = "|".join((_MARKED, r" ?[\p{P}\p{S}]+[\r\n]*", _LINES))
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# Latin, Greek, Cyrillic and other letters that have cases.
_DEEPSEEK_LETTERS = (
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\u1f5f-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ"
    "\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_AFMOE_ASIAN = (
    "[一-\u9fff㐀-䶿\uf900-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ff"
    "က-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+"
)


def _rows(row: PreTokenizer, *names: str) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names, row)


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer(
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    ),
    **_rows(
        PreTokenizer((_GPT2,)),
        *("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de"),
        *("a.x-4.0", "mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe"),
        *("exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"),
    ),
    **_rows(
        PreTokenizer((_DIGIT, _GPT2)),
        *("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"),
        "mellum2",
    ),
    **_rows(
        PreTokenizer((_LLAMA3,), begins=True, whole=True),
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "jina-v5-nano"),
    ),
    **_rows(PreTokenizer((_LLAMA3,)), "dbrx", "smaug-bpe", "chatglm-bpe"),
    **_rows(PreTokenizer((_LLAMA3,), whole=True), "glm4", "glm5"),
    "minicpm5": PreTokenizer(
        (_THREE_DIGITS, "|".join((_SUFFIX, _WORD, r"\p{N}+", _OTHER, _LINES))), whole=True
    ),
    "jais-2": PreTokenizer(
        (
            "|".join(
                (
                    *(_SUFFIX, _WORD, _THREE_DIGITS, _OTHER, r"\s*[\r\n]+"),
                    *(rf"\s{{{each}}}(?!\S)" for each in (512, 256, 128, 64, 32, 16, 8, 4)),
                    *(r"\s{1,2}(?!\S)", r"\s{1}"),
                )
            ),
        )
    ),
    **_rows(
        PreTokenizer((_QWEN2,)),
        *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"),
        *("solar-open", "grok-2"),
    ),
    "qwen35": PreTokenizer((_QWEN35,)),
    "ufakzeka": PreTokenizer(("|".join((_WORD, _DIGIT, _OTHER, _LINES)),)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    "seed-coder": PreTokenizer(
        ("|".join((_SUFFIX, _WORD, _DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", _LINES)),)
    ),
    **_rows(
        PreTokenizer(
            (
                "|".join(
                    (
                        r"'(?i:[sdmt]|ll|ve|re)",
                        r"[^\r\n\p{L}\p{N}]?+\p{L}+",
                        _DIGIT,
                        r" ?[^\s\p{L}\p{N}]++[\r\n]*",
                        r"\s*[\r\n]",
                        _BLANKS,
                    )
                ),
            )
        ),
        *("bailingmoe", "bailingmoe2", "llada-moe"),
    ),
    "exaone-moe": PreTokenizer(
        (
            "|".join(
                (
                    _SUFFIX,
                    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                    _DIGIT,
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                    r"\s*[\r\n]",
                    _BLANKS,
                )
            ),
        )
    ),
    "tekken": PreTokenizer((_TEKKEN,), begins=True, whole=True),
    **_rows(PreTokenizer((_GPT4O,)), "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), whole=True),
    **_rows(PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)), "tiny_aya", "cohere2moe"),
    "youtu": PreTokenizer(
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-\u303f︰-﹏]+|[ㄅ-ㄯ]+|" + _HAN_KANA,
            _YOUTU,
        ),
        whole=True,
    ),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            _DEEPSEEK_LETTERS,
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            _ASIAN,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN, _DIGIT)),
    **_rows(
        PreTokenizer((_THREE_DIGITS, _HAN_KANA, _DEEPSEEK3)),
        *("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    ),
    "spark2_5": PreTokenizer(
        (
            _THREE_DIGITS,
            _HAN_KANA,
            "|".join((_MARKED, r" ?[\p{P}\p{S}]+", r"[\r\n]", _BLANKS)),
            _DIGIT,
        )
    ),
    "afmoe": PreTokenizer(
        (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _AFMOE_ASIAN, _DEEPSEEK3),
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **_rows(PreTokenizer((_BLOOM,)), "poro-chat", "bloom", "gpt3-finnish"),
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            _DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        begins=True,
    ),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
}
# Known to llama.cpp, yet not of bytes: their merges are of characters.
OF_CHARACTERS = ("gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace")
