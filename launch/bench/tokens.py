"""Tokens of prompts, by the tokenizer of a model."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quire.contract.errors import ConfigError, ModelLoadError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Fewer words than these are too few to make prompts that differ of.
_FEWEST_WORDS = 16
# How byte-level and sentence-piece vocabularies write the space that a word begins with.
_SPACES = ("Ġ", "▁")
_TRIES = 8


def find_tokenizer(*names: str | None) -> "Tokens | None":
    """Return the tokenizer of the first name whose model is on this machine, None if none is.

    Args:
        names: directories, GGUF files, names in Hugging Face's local cache, or that of the
            embedded model.

    Raises:
        ModelLoadError: a model is there, and its tokenizer cannot be used.
    """
    from launch.cluster.config import embedded_model
    from launch.model_names import find_model
    from quire.tokenizer_files import load_backend

    for name in filter(None, names):
        try:
            path = find_model(name)
        except ConfigError:
            path = Path(name)
        if not path.exists():
            path = embedded_model()
            if name != path.name:
                continue
        return Tokens(load_backend(str(path)))
    return None


class Tokens:
    """What a tokenizer is asked for here.

    Args:
        backend: of the model.

    Raises:
        ModelLoadError: it has no ordinary token.
    """

    def __init__(self, backend: "Tokenizer") -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        vocabulary = backend.get_vocab(with_added_tokens=False)
        ordinary = {each: name for name, each in vocabulary.items() if each not in added}
        if not ordinary:
            raise ModelLoadError("tokenizer: must have ordinary tokens, got none")
        self._ids = np.array(sorted(ordinary))
        letters = [each for each, name in ordinary.items() if _is_letters(name)]
        words = [each for each in letters if ordinary[each].startswith(_SPACES)]
        plain = words if len(words) >= _FEWEST_WORDS else letters
        self._words = np.array(sorted(plain)) if plain else self._ids

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, without special ones."""
        return len(self._encode(text))

    def draw(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Return [count] ids of ordinary tokens."""
        return rng.choice(self._ids, count)

    def draw_words(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Return [count] ids whose text has the same ids again, where there are such."""
        return rng.choice(self._words, count)

    def text_of(self, token_ids: npt.NDArray[np.int64], rng: np.random.Generator) -> str:
        """Return a text of as many tokens as these, and of these where it can be.

        Text that is tokenized need not have the tokens that it was made of. Tokens are cut off and
        drawn until their number is right; a tokenizer may leave it a little off.
        """
        wanted = len(token_ids)
        ids = token_ids.tolist()
        for num_cut in range(1, _TRIES):
            text = self._backend.decode(ids, skip_special_tokens=False)
            ids = self._encode(text)
            if len(ids) == wanted:
                break
            # Further each time: a character may be several tokens, of which a part is none.
            ids = ids[: max(0, wanted - num_cut)]
            ids += self.draw_words(rng, wanted - len(ids)).tolist()
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def _is_letters(name: str) -> bool:
    """Return whether a token, as vocabularies write it, is ASCII letters, after a space or not."""
    letters = name[1:] if name.startswith(_SPACES) else name
    return letters.isascii() and letters.isalpha()
