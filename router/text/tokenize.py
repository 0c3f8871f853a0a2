"""Text to tokens and back, off the event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from quire.contract.errors import OverloadedError
from quire.text_id import text_id
from quire.tokenizer_files import load_backend
from router.text.detokenize import Detokenizer, DetokenizerFactory
from router.text.infill import Infill, infill_of
from router.text.offsets import encoded_offsets, pieces_offsets

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

RETRY_AFTER_MS = 1_000

T = TypeVar("T")


class TextCodec(Protocol):
    """What the router needs of a tokenizer, without blocking its event loop."""

    async def encode(self, text: str, add_special_tokens: bool = True) -> Sequence[int]:
        """Return the token ids of a text."""
        ...

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        ...

    def detokenizer(
        self, context: Sequence[int], skip_special_tokens: bool, spaces: bool = True
    ) -> Detokenizer:
        """Return an incremental detokenizer of what follows the tokens of `context`."""
        ...

    def token_text(self, token_id: int) -> str:
        """Return what a token reads as on its own."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to the UTF-8 of a text."""
        ...

    async def offsets(
        self, text: str, token_ids: Sequence[int], skip_special_tokens: bool
    ) -> Sequence[int]:
        """Return where each of a text's tokens begins in it."""
        ...

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids of the tokens beside those that texts are made of, special or not, by their text."""
        ...

    @property
    def infill(self) -> Infill | None:
        """Asks for what stands between two texts; None where the model has no tokens for it."""
        ...


class Tokenizer:
    """A model's tokenizer, behind a few threads and a bounded queue.

    Encoding a mebibyte takes about half a second. The batch calls of `tokenizers`, unlike those for
    one text, release the interpreter lock, so that the event loop and with it every other stream
    goes on meanwhile.

    Attributes:
        text_id: of the files that it was read from.
        added_tokens: ids of the tokens beside those that texts are made of, special or not, by
            their text.
        infill: asks for what stands between two texts; None where there are no tokens for it.
    """

    def __init__(
        self, backend: "Backend", num_threads: int = 2, max_queued: int = 256, text_id: str = ""
    ):
        """Wrap a tokenizer.

        Args:
            backend: the tokenizer; never changed after this, so that threads may share it.
            num_threads: threads that encode and decode.
            max_queued: calls that wait for or run in a thread at once.
            text_id: of the files that it was read from.
        """
        self.text_id = text_id
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder().items()
        self.added_tokens = {each.content: token_id for token_id, each in added}
        self.infill = infill_of(
            {each.content: each.special for _, each in added},
            {each.content: token_id for token_id, each in added if each.special},
        )
        self._backend = backend
        self._detokenizers = DetokenizerFactory(backend)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._max_queued = max_queued
        self._num_queued = 0

    @classmethod
    async def load(cls, model: str, num_threads: int = 2, max_queued: int = 256) -> "Tokenizer":
        """Load the tokenizer of a model directory, off the event loop.

        Raises:
            ModelLoadError: the directory holds no tokenizer that can be used.
        """
        backend = await asyncio.to_thread(load_backend, model)
        return cls(backend, num_threads, max_queued, text_id(Path(model)))

    def as_json(self) -> str:
        """Return the tokenizer as tokenizer.json has it."""
        return self._backend.to_str()

    async def encode(self, text: str, add_special_tokens: bool = True) -> Sequence[int]:
        """Return the token ids of a text.

        Args:
            text: at most as long as the caller allows.
            add_special_tokens: add what the model expects around a prompt, e.g. beginning-of-text.

        Raises:
            OverloadedError: too many calls wait for a thread.
        """

        def encode() -> list[int]:
            batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            token_ids: list[int] = batch[0].ids
            return token_ids

        return await self._run(encode)

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; ids the tokenizer does not know have none.

        Raises:
            OverloadedError: too many calls wait for a thread.
        """
        batch = [list(token_ids)]

        def decode() -> str:
            text: str = self._backend.decode_batch(batch, skip_special_tokens=skip_special_tokens)[
                0
            ]
            return text

        return await self._run(decode)

    def detokenizer(
        self, context: Sequence[int], skip_special_tokens: bool, spaces: bool = True
    ) -> Detokenizer:
        """Return an incremental detokenizer of what follows the tokens of `context`.

        Args:
            context: tokens before the first.
            skip_special_tokens: give special tokens no text.
            spaces: between special tokens and others, where the tokenizer's decoder puts them.
        """
        return self._detokenizers.make(context, skip_special_tokens, spaces)

    def token_text(self, token_id: int) -> str:
        """Return what a token reads as on its own, U+FFFD for part of a character."""
        return self._detokenizers.token_text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to the UTF-8 of a text."""
        return self._detokenizers.token_bytes(token_id)

    async def offsets(
        self, text: str, token_ids: Sequence[int], skip_special_tokens: bool
    ) -> Sequence[int]:
        """Return where each of a text's tokens begins in it, in characters.

        Args:
            text: of which the tokens were made, or that of the tokens.
            token_ids: all of them, with what was added around the text.
            skip_special_tokens: whether the text of tokens lacks that of special ones.

        Raises:
            OverloadedError: too many calls wait for a thread.
        """

        def find() -> list[int]:
            encoding = self._backend.encode_batch([text])[0]
            if encoding.ids != list(token_ids):
                detokenizer = self.detokenizer((), skip_special_tokens)
                return pieces_offsets(text, list(map(detokenizer.push, token_ids)))
            detokenizer = self.detokenizer((), False)
            pieces = [
                "" if is_added else detokenizer.push(token_id)
                for token_id, is_added in zip(token_ids, encoding.special_tokens_mask, strict=True)
            ]
            if "".join(pieces).endswith(text):
                return pieces_offsets(text, pieces)
            # The tokenizer changed the text, to lower case for instance.
            return encoded_offsets(text, encoding.offsets, map(self.token_text, token_ids))

        return await self._run(find)

    def close(self) -> None:
        """Let the threads end; calls that have not begun are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._num_queued >= self._max_queued:
            raise OverloadedError(
                f"at most {self._max_queued} texts wait for the tokenizer", RETRY_AFTER_MS
            )
        self._num_queued += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_queued -= 1
