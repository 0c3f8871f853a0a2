"""The process that tries grammars out: `python -m router.text.grammar_reader`, in a sandbox.

What a grammar costs shows only where it is read and used: its size bounds neither. So it is opened
here, and made to give a few masks, before any worker sees it.
"""

from random import Random
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend

from quire.contract.errors import InvalidRequestError, ModelLoadError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import open_matcher, open_vocabulary, why_failed
from router.sandbox.child import Answer, serve

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Tokens that are tried: so many together may take the time limit.
NUM_TOKENS = 32


def prepare(settings: Any) -> Answer:
    """Return what answers grammars with nothing, or refuses them."""
    eos_token_ids = settings["eos_token_ids"]
    try:
        backend = Backend.from_str(settings["tokenizer"])
        vocabulary = open_vocabulary(backend, settings["vocab_size"], eos_token_ids)
    except ModelLoadError as error:
        reason = error.message

        def refuse(question: Any) -> dict[str, Any]:
            raise InvalidRequestError("structured_outputs", f"must be absent: {reason}")

        return refuse

    def answer(question: Any) -> dict[str, Any]:
        params = StructuredOutputsParams(**question)
        try_out(open_matcher(vocabulary, params), params, eos_token_ids)
        return {}

    return answer


def try_out(matcher: "LLMatcher", params: StructuredOutputsParams, ends: list[int]) -> None:
    """Let some text be generated.

    Mutates: the matcher.

    Raises:
        InvalidRequestError: there is no text, or a limit is reached.
    """
    draw = Random(0)
    for place in range(NUM_TOKENS):
        mask = bytearray(matcher.compute_bitmask())
        if reason := why_failed(matcher):
            if place == 0 and "NoExtension" in reason:
                raise _no_text(params)
            raise InvalidRequestError(
                params.field, f"must stay within its limits, got after {place} tokens: {reason}"
            )
        for token_id in ends:
            mask[token_id // 8] &= ~(1 << token_id % 8)
        if not any(mask):
            if place == 0 and not matcher.is_accepting():
                raise _no_text(params)
            return
        matcher.consume_token(_any_token(mask, draw))


def _no_text(params: StructuredOutputsParams) -> InvalidRequestError:
    return InvalidRequestError(params.field, "must allow some text, got a grammar of none")


def _any_token(mask: bytearray, draw: Random) -> int:
    """Return a token that a mask allows, the first from a random one on."""
    first = draw.randrange(len(mask))
    turned = mask[first:] + mask[:first]
    place = len(turned) - len(turned.lstrip(b"\0"))
    bits = turned[place]
    return (first + place) % len(mask) * 8 + (bits & -bits).bit_length() - 1


if __name__ == "__main__":
    serve(prepare)
