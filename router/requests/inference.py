"""What a router does for its clients, whichever API they speak: fronts translate to and from this.

The same request gives the same tokens through every front, since none of them does more than that.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from quire.contract.callers import Caller
from quire.contract.chat import ChatInput, ResumeChatInput
from quire.contract.errors import InvalidRequestError, ReaderStalledError
from quire.contract.inputs import (
    DetokenizeInput,
    GenerateInput,
    ReceivedOutput,
    ResumeInput,
    TokenizeInput,
)
from quire.contract.model_statistics import ModelStatistics
from quire.contract.outputs import Delta, Event, ModelInfo, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from quire.observe.tracing import child, current_span
from router.cells.pool import CellPool
from router.chat.grammars import by_its_tool
from router.chat.parsers.formats import OutputFormat
from router.chat.prompts import ChatPrompts
from router.chat.reader import OutputReader, with_special_tokens
from router.requests.counters import Counters, RequestCounters
from router.requests.orphans import Orphans
from router.requests.parsed import EventParser
from router.requests.reader import ReaderWatch, StreamReader
from router.requests.resume import check_received
from router.requests.slices import in_slices
from router.requests.stream import RequestStream
from router.requests.time_ledger import TimeLedger
from router.requests.validate import Validator
from router.requests.vector_calls import VectorCalls
from router.text.detokenize import Detokenizer
from router.text.tokenize import TextCodec

# Texts of calls with several that wait for the tokenizer, whose queue other requests need too.
MAX_TEXTS_AT_ONCE = 32


class Inference:
    """Requests from their first check to the last event that a client reads.

    Args:
        validator: checks them.
        codec: the tokenizer.
        chats: makes prompts of conversations.
        cells: that compute them.
        orphans: those whose client is gone.
        counters: of what becomes of them.
        stalled_reader_timeout_s: how long a client may take to read an event.
        output_format: what the model writes beside plain text.

    Attributes:
        stalled_reader_timeout_s: as given.
        vector_calls: what the calls for vectors share.
        tokenizing: held by each text of a call with several that is with the tokenizer.
    """

    def __init__(
        self,
        validator: Validator,
        codec: TextCodec,
        chats: ChatPrompts,
        cells: CellPool,
        orphans: Orphans,
        counters: Counters,
        stalled_reader_timeout_s: float,
        output_format: OutputFormat,
    ) -> None:
        self._output_format = output_format
        self._validator = validator
        self._codec = codec
        self._chats = chats
        self._cells = cells
        self._orphans = orphans
        self._counters = counters
        self.stalled_reader_timeout_s = stalled_reader_timeout_s
        self.vector_calls = VectorCalls()
        self.tokenizing = asyncio.Semaphore(MAX_TEXTS_AT_ONCE)

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return self._counters.num_open

    @contextmanager
    def refusals(self, caller: Caller) -> Iterator[None]:
        """Count what is raised inside as a refused request: a front has yet to read one."""
        try:
            yield
        except Exception as error:
            record = self._counters.open(caller.name)
            record.fail(error)
            raise

    @contextmanager
    def counted(self, caller: Caller) -> Iterator[RequestCounters]:
        """Count what happens inside as one request, however often it is sent again."""
        record = self._counters.open(caller.name)
        try:
            yield record
        except Exception as error:
            record.fail(error)
            raise
        finally:
            record.close()

    async def events(
        self,
        request: GenerateInput | ChatInput | ResumeInput,
        caller: Caller,
        deadline_s: float | None = None,
        record: RequestCounters | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield Started, a Delta whenever there is something new, and Finished for each output.

        Read it in one task, in `contextlib.aclosing`, and send each event before the next is asked
        for: the time between is the client's, which may leave an event unread for only so long.
        Closing it early ends the request, or leaves it to its grace time; a task that is cancelled
        while it sends does so at once.

        Args:
            request: to run, or to go on with where its client stands.
            caller: whose API key it came with.
            deadline_s: until when its client waits, on the monotonic clock; None for ever. The
                caller ends the stream then.
            record: of `counted`, which counts how a request ends that may be sent again; None
                where this does.

        Raises:
            QuireError: the request is refused, or failed. ReaderStalledError comes in the place of
                what cancelled the sending of an event.
        """
        counted = self.counted(caller) if record is None else nullcontext(record)
        with counted as record:
            request, parser = self._parser_of(request)
            stream = await self._open(request, caller, deadline_s, record)
            reader = StreamReader(stream)
            try:
                with ReaderWatch(self.stalled_reader_timeout_s) as watch:
                    async with aclosing(reader.events()) as events:
                        async for read in events:
                            for event in in_slices(read):
                                record.count(event)
                                shown = self._with_texts(event)
                                if parser is not None:
                                    shown = await parser.take(shown)
                                watch.begin()
                                yield shown
                                watch.end()
                                if event is not read:  # others go on between slices
                                    await asyncio.sleep(0)
            except ReaderStalledError as error:
                reader.fail(error)
                raise
            finally:
                self._orphans.left(stream, reader)

    async def _open(
        self,
        request: GenerateInput | ChatInput | ResumeInput,
        caller: Caller,
        deadline_s: float | None,
        record: RequestCounters,
    ) -> RequestStream:
        """Check a request and start it, or find it running; return what is to be read."""
        ledger = TimeLedger()
        resumed = request if isinstance(request, ResumeInput) else None
        sent = request.request if isinstance(request, ResumeInput) else request
        caller.check_priority(sent.priority)
        if isinstance(sent, ChatInput):
            sent = await self._chats.generate_input(sent, ledger)
        if resumed is not None:
            valid = await self._validator.resume(resumed, ledger)
            check_received(resumed, valid)
            num_ended = sum(output.ended for output in resumed.received)
        else:
            try:
                valid = await self._validator.generate(sent, ledger)
            except InvalidRequestError as error:
                if not isinstance(request, ChatInput):
                    raise
                check = partial(self._validator.check_grammar, model=request.model)
                raise await by_its_tool(request, error, check) from None
            num_ended = 0
        params = valid.sampling_params
        record.accept(valid.model.name, params.n - num_ended, resumed is not None)
        if valid.pooling_params is None:
            self.vector_calls.check_free(valid.request_id, caller.name)
        stream = RequestStream(
            valid,
            lambda: self.detokenizer(valid.prompt_token_ids, params),
            ledger,
            current_span(),
            caller,
            deadline_s,
        )
        if resumed is not None:
            return await self._orphans.resume(stream, resumed)
        self._orphans.open(stream)
        return stream

    def _parser_of(
        self, request: GenerateInput | ChatInput | ResumeInput
    ) -> tuple[GenerateInput | ChatInput | ResumeInput, EventParser | None]:
        """Return what is sent, and what adds to its events what their text means; None for none."""
        if isinstance(request, ChatInput) and request.parse_output:
            chat = self.readable(request)
            sent: ChatInput | ResumeInput = chat
            received: Sequence[ReceivedOutput] = ()
        elif isinstance(request, ResumeChatInput):
            plain, received = request.request, request.received
            chat = self.readable(replace(request.chat, sampling_params=plain.sampling_params))
            params = chat.sampling_params
            plain = replace(plain, sampling_params=params, include_prompt_token_ids=True)
            sent = replace(request, request=plain)
        else:
            return request, None

        def detokenizer(prompt: Sequence[int]) -> Detokenizer:
            return self.detokenizer(prompt, chat.sampling_params)

        return sent, EventParser(chat, self.reader, detokenizer, received)

    def _with_texts(self, event: Event) -> Event:
        """Say what the tokens of log-probabilities read as."""
        if not isinstance(event, Delta) or not (event.logprobs or event.prompt_logprobs):
            return event
        return replace(
            event,
            logprobs=tuple(map(self._position_with_texts, event.logprobs)),
            prompt_logprobs=tuple(map(self._position_with_texts, event.prompt_logprobs)),
        )

    def _position_with_texts(self, position: TokenLogprobs) -> TokenLogprobs:
        return replace(position, texts=tuple(map(self._codec.token_text, position.token_ids)))

    async def generate_input(self, chat: ChatInput) -> GenerateInput:
        """Return the request that a chat is; raises as `ChatPrompts.generate_input`."""
        return await self._chats.generate_input(chat, TimeLedger())

    async def prompt_ids(self, chat: ChatInput) -> Sequence[int]:
        """Return the token ids of the prompt that a chat is, to a model that is served.

        Raises:
            QuireError: as `generate_input` and `find_model`.
        """
        await self.find_model(chat.model)
        prompt = (await self.generate_input(chat)).prompt
        assert not isinstance(prompt, str), "it was tokenized"
        return prompt

    def readable(self, chat: ChatInput) -> ChatInput:
        """Return a chat as it is sent where its outputs are read: formats have special tokens."""
        return with_special_tokens(chat, self._output_format)

    def reader(self, chat: ChatInput) -> OutputReader:
        """Return what reads the outputs of such a chat, once it has its request id."""
        eos_token_ids = {each for model in self.models() for each in model.eos_token_ids}
        return OutputReader(self._output_format, chat, self.token_text, eos_token_ids)

    def abort(self, request_id: str, caller: Caller) -> bool:
        """End a request of the same caller; return whether there was one. It ends with ABORT."""
        is_call = self.vector_calls.abort(request_id, caller.name)
        return self._orphans.abort(request_id, caller.name) or is_call

    def seed_of(self, request_id: str, caller: Caller) -> int | None:
        """Return the seed of a request that a caller has here; None where there is none yet."""
        return self._orphans.seed_of(request_id, caller.name)

    async def tokenize(self, request: TokenizeInput) -> Sequence[int]:
        """Return the token ids of a text; raises as `Validator.tokenize`."""
        return await self._validator.tokenize(request)

    async def tokenize_in_turn(self, request: TokenizeInput, name: str) -> Sequence[int]:
        """Return the token ids of one of a call's texts.

        Args:
            request: of the text.
            name: of the text, in messages.

        Raises:
            QuireError: as `Validator.tokenize`.
        """
        try:
            with child("tokenize"):
                return await self._validator.tokenize(request, self.tokenizing)
        except InvalidRequestError as error:
            if error.field != "text":
                raise
            raise error.renamed(name) from error

    async def detokenize(self, request: DetokenizeInput) -> str:
        """Return the text of token ids; raises as `Validator.detokenize`."""
        return await self._validator.detokenize(request)

    def token_text(self, token_id: int) -> str:
        """Return what a token reads as on its own, U+FFFD for part of a character."""
        return self._codec.token_text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to the UTF-8 of a text."""
        return self._codec.token_bytes(token_id)

    def detokenizer(self, prompt: Sequence[int], params: SamplingParams) -> Detokenizer:
        """Return what makes the text of an output behind the tokens of a prompt."""
        spaces = params.spaces_between_special_tokens
        return self._codec.detokenizer(prompt, params.skip_special_tokens, spaces)

    async def text_offsets(
        self, text: str, token_ids: Sequence[int], params: SamplingParams
    ) -> Sequence[int]:
        """Return where each token of a prompt begins in its text; raises as `TextCodec.offsets`."""
        return await self._codec.offsets(text, token_ids, params.skip_special_tokens)

    def infill(self, requests: Sequence[GenerateInput], after: str) -> list[GenerateInput]:
        """Return the requests of what stands between prompts, which are texts, and another text.

        Args:
            requests: of equal sampling parameters but for the seed.
            after: what follows on each of them.

        Raises:
            InvalidRequestError: the model has no tokens for it, or it is too long for so many.
        """
        infill = self._codec.infill
        if infill is None:
            raise InvalidRequestError(
                "suffix", "must be absent: the model's tokenizer has no tokens to fill in a middle"
            )
        self._validator.check_repeated("suffix", after, len(requests))
        return [
            replace(
                request,
                prompt=infill.prompt(request.prompt, after),
                sampling_params=infill.params(request.sampling_params),
            )
            for request in requests
            if isinstance(request.prompt, str)
        ]

    def statistics(self, model: str) -> ModelStatistics:
        """Return what became of the requests of a model, by its first name."""
        return self._counters.statistics(model)

    def models(self) -> list[ModelInfo]:
        """Return the models of the cells that are connected."""
        return self._cells.models()

    async def find_model(self, name: str, with_vectors: bool = False) -> ModelInfo:
        """Return the model of a name, "" for the only one; all of it as `CellPool.find_model`."""
        return await self._cells.find_model(name, None, with_vectors)
