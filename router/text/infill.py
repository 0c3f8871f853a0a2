"""What stands between two texts: prompts in the tokens that models of code have for it.

Fill in the middle as Bavarian et al. have it ("Efficient Training of Language Models to Fill in the
Middle", 2022), the text before first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from quire.contract.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Texts of the tokens of one family: before each part, and of what else ends the middle."""

    before: str
    after: str
    middle: str
    ends: tuple[str, ...] = ()


_FAMILIES = (
    # StarCoder, StarCoder2, Granite's and Stability's models of code.
    _Tokens(
        *("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ends=("<fim_pad>", "<file_sep>", "<|endoftext|>"),
    ),
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma.
    _Tokens(
        *("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ends=(
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
            "<|file_separator|>",
            "<|endoftext|>",
        ),
    ),
    # CodeLlama.
    _Tokens("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    # DeepSeek-Coder.
    _Tokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ends=("<｜end▁of▁sentence｜>",)),
)


class Infill:
    """Asks a model for what stands between two texts.

    Args:
        tokens: of its family.
        added: whether each token of the tokenizer that is no piece of text is special, by its text.
        special_tokens: ids of the special ones.
    """

    def __init__(
        self, tokens: _Tokens, added: Mapping[str, bool], special_tokens: Mapping[str, int]
    ) -> None:
        self._tokens = tokens
        own = (tokens.before, tokens.after, tokens.middle)
        ends = [each for each in (*own, *tokens.ends) if each in added]
        # A special token has no text in an output, so that its id ends it; of others the text does.
        self._stop_token_ids = tuple(special_tokens[each] for each in ends if added[each])
        self._stop = tuple(each for each in ends if not added[each])

    def prompt(self, before: str, after: str) -> str:
        """Return the prompt whose continuation stands between two texts."""
        tokens = self._tokens
        return f"{tokens.before}{before}{tokens.after}{after}{tokens.middle}"

    def params(self, params: SamplingParams) -> SamplingParams:
        """Return parameters with which an output ends where the middle does.

        Raises:
            InvalidRequestError: with the model's own there are too many ends.
        """
        ids = dict.fromkeys((*params.stop_token_ids, *self._stop_token_ids))
        return replace(
            params,
            stop=tuple(dict.fromkeys((*params.stop, *self._stop))),
            stop_token_ids=tuple(ids),
        )


def infill_of(added: Mapping[str, bool], special_tokens: Mapping[str, int]) -> Infill | None:
    """Return what a model is asked with; None where its tokenizer has no tokens for it.

    Args:
        added: whether each token of the tokenizer that is no piece of text is special, by its text.
        special_tokens: ids of the special ones.
    """
    for tokens in _FAMILIES:
        if all(each in added for each in (tokens.before, tokens.after, tokens.middle)):
            return Infill(tokens, added, special_tokens)
    return None
