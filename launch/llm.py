"""The offline API: a list of prompts in, a list of outputs out. Names and shapes are vLLM's."""

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from launch import llm_requests, llm_vectors
from launch.cluster.config import ClusterConfig
from launch.extras import require
from launch.keywords import documents_keywords
from launch.llm_cluster import close_quietly, config_of, keywords_of, source_of, start_cluster
from launch.llm_requests import Conversation, refuse, rendered
from quire.contract.embeddings import EmbeddingRequestOutput, ScoringRequestOutput
from quire.contract.engine_options import EngineKeywords
from quire.contract.errors import ConfigError, InvalidRequestError
from quire.contract.pooling_params import NORMALIZED, PoolingParams
from quire.contract.request_outputs import BeamSearchOutput, RequestOutput
from quire.contract.sampling_params import (
    FILLED_IN,
    MAX_SEED,
    BeamSearchParams,
    SamplingParams,
)
from quire.sdk.calls import EmbedOptions, Messages, TemplateOptions
from quire.sdk.client import AsyncClient, Client
from quire.sdk.progress import progress_bar
from quire.sdk.prompts import ParsedPrompt, Prompt, all_with_ids, parse_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from launch.cluster.thread import ClusterThread
    from launch.engine import LLMEngine


@documents_keywords(ClusterConfig, EngineKeywords)
class LLM:
    """A model to give prompts to: a cluster of its own, or one that runs already.

        with LLM("path/to/model") as llm:
            for output in llm.generate(["Once upon", "In the end"], SamplingParams(max_tokens=32)):
                print(output.prompt, output.outputs[0].text)

    The cluster's processes end with `close`, with the `with` block, or with this process.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        tokenizer: str | Path | None = None,
        *,
        target: str | Sequence[str] | None = None,
        api_key: str | None = None,
        tls_dir: str | Path | None = None,
        revision: str | None = None,
        download_dir: str | Path | None = None,
        tokenizer_revision: str | None = None,
        hf_overrides: Mapping[str, Any] | None = None,
        seed: int | None = None,
        **options: Unpack[EngineKeywords],
    ) -> None:
        """Start a cluster and return when it takes requests, or connect to one.

        Args:
            model: Hugging Face model directory, a GGUF file, or a name in Hugging Face's local
                cache; None takes the embedded demo model. With a target, only `chat` with a
                `chat_template` reads it, for its special tokens.
            tokenizer: directory or name of a model whose tokenizer and chat template take the place
                of this model's.
            target: router of a running cluster, "host:port", or several, as for `Client`; the
                options below are then its own.
            api_key: for the target; None takes QUIRE_API_KEY from the environment, if set.
            tls_dir: certificates, as for `Client`; a cluster of its own takes those of all roles
                from there.
            revision: branch, tag or commit of a name.
            download_dir: Hugging Face's cache; None takes that of HF_HUB_CACHE or HF_HOME.
            tokenizer_revision: branch, tag or commit of such a name.
            hf_overrides: values that take the place of those in config.json.
            seed: of prompts whose parameters have none: the first has this one, the next one more,
                and so on. None has each drawn.
            **options: of the engine, as of `quire serve`: see EngineKeywords.

        Raises:
            TypeError: a keyword is no option, and none of vLLM's.
            ConfigError: a keyword of vLLM's asks for what is not done here; the model is not found;
                the cluster cannot start, or what it needs is not installed; one line that
                says why.
            UnavailableError: a service died without a word.
        """
        if seed is not None and (not isinstance(seed, int) or not 0 <= seed <= MAX_SEED):
            raise ConfigError(f"seed: must be an integer in [0, {MAX_SEED}], got {seed!r}")
        options = keywords_of(options)
        self._model = Path(model) if model is not None else None
        self._next_seed = seed
        tls_dir = tls_dir or os.environ.get("QUIRE_TLS_DIR") or None
        self._cluster: ClusterThread | None = None
        if target is None:
            require("LLM", "router", "worker", bring="all")
            source = source_of(revision, download_dir, tokenizer, tokenizer_revision, hf_overrides)
            config = config_of(model, source, tls_dir, options)
            self._model = config.model
            self._cluster = start_cluster(config)
            target = self._cluster.address
        self.target = target
        self._tls_dir, self._api_key = tls_dir, api_key
        self._client = self._connect()
        self._engine: LLMEngine | None = None
        # Also when this process ends without `close`, before its threads are stopped in mid-air.
        self.engines: weakref.WeakSet[LLMEngine] = weakref.WeakSet()
        self._at_end = weakref.finalize(
            self, close_quietly, self.engines, self._client, self._cluster
        )

    def _connect(self) -> Client:
        return Client(self.target, tls_dir=self._tls_dir, api_key=self._api_key)

    def async_client(self) -> AsyncClient:
        """Return a client of the same cluster for asyncio; whoever asks for it closes it."""
        return AsyncClient(self.target, tls_dir=self._tls_dir, api_key=self._api_key)

    @property
    def llm_engine(self) -> "LLMEngine":
        """An engine over the same cluster, for a loop of `step`; `close` ends both."""
        from launch.engine import LLMEngine

        if self._engine is None:
            self._engine = LLMEngine(self)
        return self._engine

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """Return the tokenizer of the model, as transformers reads it.

        Raises:
            ConfigError: the model's path is not known, as with a target alone.
            ModelLoadError: there is none that can be used.
        """
        from quire.tokenizer_files import load_tokenizer

        if self._model is None:
            raise ConfigError("model: must be given with a target, for its tokenizer, got none")
        return load_tokenizer(self._model)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return parameters that leave to the router what the model's generation_config.json has.

        `generate` takes them where it is given none.
        """
        return SamplingParams(left_open=frozenset(FILLED_IN) - {"max_tokens"})

    def seeded(self, params: SamplingParams) -> SamplingParams:
        """Return a copy with a seed: their own, or the next of those that start with `seed`."""
        if params.seed is not None or self._next_seed is None:
            return params.clone()
        seed, self._next_seed = self._next_seed, (self._next_seed + 1) % (MAX_SEED + 1)
        return params.with_seed(seed)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool = True,
        *,
        priority: Sequence[int] | None = None,
        include_time_breakdown: bool = False,
        lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts, all at once; the cluster batches them.

        Args:
            prompts: one or many; each a text, token ids, or a mapping that has "prompt" or
                "prompt_token_ids" and may have "cache_salt".
            sampling_params: for all, or one for each prompt; None for the defaults.
            prompt_token_ids: of one prompt or many, instead of `prompts`, or of these: then their
                texts are only shown.
            use_tqdm: show a progress bar on the terminal.
            priority: of each prompt, in [-100, 100]; smaller goes first.
            include_time_breakdown: have each output say where its time went.
            lora_request: None: adapters are not served.
            tokenization_kwargs: None, or nothing in it: texts are tokenized by the router.

        Returns:
            One output for each prompt, in their order.

        Raises:
            InvalidRequestError: a prompt or parameter is out of bounds; the others are given up.
            UnavailableError: the cluster cannot be reached.
        """
        refuse(lora_request=lora_request, tokenization_kwargs=tokenization_kwargs)
        return self._run_all(
            parse_prompts(all_with_ids(prompts, prompt_token_ids)),
            sampling_params,
            use_tqdm=use_tqdm,
            priority=priority,
            include_time_breakdown=include_time_breakdown,
        )

    def _run_all(
        self,
        wanted: Sequence[ParsedPrompt | Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        use_tqdm: bool,
        priority: Sequence[int] | None = None,
        include_time_breakdown: bool = False,
    ) -> list[RequestOutput]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [sampling_params or self.get_default_sampling_params()] * len(wanted)
        else:
            params = list(sampling_params)
        priorities = [0] * len(wanted) if priority is None else list(priority)
        for field, values in (("sampling_params", params), ("priority", priorities)):
            if len(values) != len(wanted):
                raise InvalidRequestError(
                    field, f"needs one for each of {len(wanted)} prompts, got {len(values)}"
                )
        return llm_requests.run_all(
            # Of their own: closing it ends every request that still runs, whatever it waits for.
            self._connect,
            list(zip(wanted, map(self.seeded, params), priorities, strict=True)),
            include_time_breakdown=include_time_breakdown,
            use_tqdm=use_tqdm,
        )

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        parse_output: bool = False,
        lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Continue conversations, as `generate` does prompts.

        Args:
            messages: one conversation or many; each message has "role" and "content".
            sampling_params: as for `generate`.
            use_tqdm: show a progress bar on the terminal.
            chat_template: Jinja template; None takes the model's, at its router.
            add_generation_prompt: end each conversation where the assistant begins to speak.
            continue_final_message: end each where its last message ends instead.
            tools: that the assistant may call, in OpenAI's shape.
            tool_choice: "auto", "none", "required", or the tool that has to be called.
            chat_template_kwargs: variables for the template, such as enable_thinking.
            parse_output: read reasoning and tool calls out of the texts, into `content`,
                `reasoning` and `tool_calls` of each output.
            lora_request: as for `generate`.
            tokenization_kwargs: as for `generate`.

        Raises:
            ConfigError: `chat_template` is given, and the model's path is not known here; or beside
                parse_output or tool_choice, which the router's template goes with.
            InvalidRequestError: the model has no chat template, or it refuses a conversation; else
                as for `generate`.
        """
        refuse(lora_request=lora_request, tokenization_kwargs=tokenization_kwargs)
        one = bool(messages) and not isinstance(messages[0], list | tuple)
        conversations: Any = [messages] if one else messages
        options: TemplateOptions = {
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tool_choice": tool_choice,
            "parse_output": parse_output,
        }
        if chat_template is not None and (parse_output or tool_choice is not None):
            raise ConfigError(
                "chat_template: must be the router's with parse_output and tool_choice, got another"
            )
        chats = [Conversation(each, options) for each in conversations]
        if chat_template is None:
            return self._run_all(chats, sampling_params, use_tqdm=use_tqdm)
        prompts = rendered(self._client, self._model, chats, chat_template)
        return self._run_all(prompts, sampling_params, use_tqdm=use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = True,
    ) -> list[BeamSearchOutput]:
        """Search for the most probable continuations of prompts.

        Args:
            prompts: as for `generate`.
            params: for all of them.
            use_tqdm: show a progress bar on the terminal.

        Returns:
            One output for each prompt, in their order.

        Raises:
            InvalidRequestError: as for `generate`.
            UnavailableError: as for `generate`.
        """
        found = self.generate(prompts, params.sampling_params(), use_tqdm=use_tqdm)
        return [llm_requests.beams_of(self._client, each) for each in found]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        lora_request: None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return the vector of each prompt: the hidden state of its last token.

        Args:
            prompts: as for `generate`.
            truncate_prompt_tokens: use only so many tokens of each prompt, its last ones; -1 for
                as many as the model takes.
            use_tqdm: show a progress bar on the terminal.
            pooling_params: of all; None for vectors of length 1.
            lora_request: as for `generate`.

        Raises:
            InvalidRequestError: as for `generate`.
            UnavailableError: as for `generate`.
        """
        refuse(lora_request=lora_request)
        wanted, params = parse_prompts(prompts), pooling_params or NORMALIZED
        options: EmbedOptions = {
            "truncate_prompt_tokens": truncate_prompt_tokens,
            "normalize": params.normalize,
            "dimensions": params.dimensions,
        }
        with progress_bar(len(wanted), use_tqdm) as advance:
            return llm_vectors.embed(self._client, wanted, options, advance)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
        lora_request: None = None,
    ) -> list[ScoringRequestOutput]:
        """Return how alike pairs of texts are: the cosine of their vectors.

        Args:
            data_1: one text for all of `data_2`, or one for each.
            data_2: texts.
            truncate_prompt_tokens: as for `embed`.
            use_tqdm: show a progress bar on the terminal.
            lora_request: as for `generate`.

        Raises:
            InvalidRequestError: the numbers of texts make no pairs; else as for `embed`.
            UnavailableError: as for `embed`.
        """
        refuse(lora_request=lora_request)
        first, second = (
            [each] if isinstance(each, str) else list(each) for each in (data_1, data_2)
        )
        llm_vectors.check_pairs(first, second)
        found = self.embed(
            [*first, *second], truncate_prompt_tokens=truncate_prompt_tokens, use_tqdm=use_tqdm
        )
        return llm_vectors.scores(found[: len(first)], found[len(first) :])

    def close(self) -> None:
        """Disconnect, and stop the cluster if it is this object's own. May be called again."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.end_requests()
        self._client.close()
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
        self._at_end.detach()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
