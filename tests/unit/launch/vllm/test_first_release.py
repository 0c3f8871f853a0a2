"""Python of vLLM's first release, 0.1.2: arguments in its order, and engines with its methods."""

import weakref
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import fields
from typing import Any

import pytest

from launch.cluster.config import LauncherName, embedded_model
from launch.engine_args import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig
from launch.llm_cluster import config_of, keywords_of
from launch.model_source import ModelSource
from quire import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineArgs,
    LLMEngine,
    RequestOutput,
    SamplingParams,
)
from quire.contract.engine_options import GIB
from quire.contract.errors import ConfigError, InvalidRequestError
from quire.contract.outputs import Delta, Event, Finished, FinishReason, Started
from quire.contract.sampling_params import FILLED_IN
from quire.contract.time_breakdown import TimeBreakdown
from quire.sdk.prompts import parse_prompts

IDS = (7, 8, 9)
PARAMS = SamplingParams(temperature=0.0, max_tokens=1)
# In the order of 0.1.2; values are not the defaults where others are taken.
ARGUMENTS: dict[str, Any] = {
    "model": "someone/model",
    "tokenizer": "someone/tokenizer",
    "tokenizer_mode": "auto",
    "download_dir": "/cache",
    "use_np_weights": True,
    "use_dummy_weights": True,
    "dtype": "half",
    "seed": 3,
    "worker_use_ray": True,
    "pipeline_parallel_size": 1,
    "tensor_parallel_size": 2,
    "block_size": 32,
    "swap_space": 4,
    "gpu_memory_utilization": 0.5,
    "max_num_batched_tokens": 4096,
    "max_num_seqs": 64,
    "disable_log_stats": True,
}
# Those that LLM has under their names; the others are options.
OF_LLM = ("model", "tokenizer", "download_dir", "seed")


class FakeClient:
    """Answers each request with a token. Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, SamplingParams]] = []
        self.is_closed = False

    async def stream(
        self, prompt: str | Sequence[int], params: SamplingParams, *, request_id: str, **_: Any
    ) -> AsyncGenerator[Event, None]:
        self.asked.append((prompt, params))
        ids = (1,) if isinstance(prompt, str) else tuple(prompt)
        yield Started(request_id, len(ids), seed=0, prompt_token_ids=ids)
        yield Delta("so", (5,))
        yield Finished(FinishReason.LENGTH, 1, num_cached_tokens=2)

    async def close(self) -> None:
        self.is_closed = True


class FakeLLM:
    """What engines need of LLM. Has the client of all of them."""

    def __init__(self, **given: Any) -> None:
        self.given, self.client = given, FakeClient()
        self.engines: weakref.WeakSet[LLMEngine] = weakref.WeakSet()
        self.is_closed = False

    def async_client(self) -> FakeClient:
        return self.client

    def seeded(self, params: SamplingParams) -> SamplingParams:
        return params.clone()

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def llms(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """What engines have made of their arguments."""
    found: list[FakeLLM] = []

    def make(**given: Any) -> FakeLLM:
        found.append(FakeLLM(**given))
        return found[-1]

    monkeypatch.setattr("launch.engine.LLM", make)
    return found


@pytest.fixture
def engine(llms: list[FakeLLM]) -> Iterator[LLMEngine]:
    engine = LLMEngine.from_engine_args(EngineArgs())
    yield engine
    engine.shutdown()
    assert llms[0].is_closed and llms[0].client.is_closed


def last_of(engine: LLMEngine) -> RequestOutput:
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs[-1]


def test_sampling_params_by_position() -> None:
    given = SamplingParams(2, 3, 0.1, 0.2, 0.5, 0.9, 40, False, "a", True, 5, 1)
    named = SamplingParams(
        n=2,
        best_of=3,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        use_beam_search=False,
        stop=["a"],
        ignore_eos=True,
        max_tokens=5,
        logprobs=1,
    )
    assert given == named
    # Since equal ones could all be wrong.
    assert (given.n, given.best_of, given.top_p, given.top_k) == (2, 3, 0.9, 40)
    assert given.clone() == given


def test_engine_args_by_position_and_by_name() -> None:
    assert [each.name for each in fields(EngineArgs)] == list(ARGUMENTS)
    by_place, by_name = EngineArgs(*ARGUMENTS.values()), EngineArgs(**ARGUMENTS)
    assert by_place.given == by_name.given == ARGUMENTS
    assert {name: getattr(by_place, name) for name in ARGUMENTS} == ARGUMENTS
    more = {"engine_use_ray": True, "disable_log_requests": True}
    assert [each.name for each in fields(AsyncEngineArgs)] == [*ARGUMENTS, *more]
    both = AsyncEngineArgs(*ARGUMENTS.values(), *more.values())
    assert both.given == {**ARGUMENTS, **more}
    with pytest.raises(TypeError, match=r"^EngineArgs: at most 17 arguments by position"):
        EngineArgs(*ARGUMENTS.values(), True)
    with pytest.raises(TypeError, match=r"^EngineArgs: model is given twice"):
        EngineArgs("a", model="b")


def test_engine_configs_have_what_was_given() -> None:
    model, cache, parallel, scheduler = EngineArgs(*ARGUMENTS.values()).create_engine_configs()
    assert model == ModelConfig(
        model="someone/model",
        tokenizer="someone/tokenizer",
        tokenizer_mode="auto",
        download_dir="/cache",
        dtype="half",
        seed=3,
    )
    assert cache == CacheConfig(block_size=32, gpu_memory_utilization=0.5, swap_space_bytes=4 * GIB)
    assert parallel == ParallelConfig(
        pipeline_parallel_size=1, tensor_parallel_size=2, worker_use_ray=True
    )
    assert parallel.world_size == 2
    assert scheduler == SchedulerConfig(max_num_batched_tokens=4096, max_num_seqs=64)


def test_engine_configs_of_nothing_have_the_defaults() -> None:
    model, cache, parallel, scheduler = EngineArgs("someone/model").create_engine_configs()
    assert (model.model, model.tokenizer) == ("someone/model", "someone/model")
    assert (model.dtype, model.seed) == ("auto", None)
    assert cache == CacheConfig(block_size=16, gpu_memory_utilization=None, swap_space_bytes=None)
    assert parallel == ParallelConfig(1, 1, worker_use_ray=False)
    assert scheduler == SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=256)
    with pytest.raises(ConfigError, match=r"^pipeline_parallel_size: must be 1, got 2"):
        EngineArgs(pipeline_parallel_size=2).create_engine_configs()


@pytest.mark.parametrize("args", [EngineArgs, AsyncEngineArgs])
def test_all_of_them_are_keywords_of_an_llm(args: type[EngineArgs], llms: list[FakeLLM]) -> None:
    LLMEngine.from_engine_args(args(*ARGUMENTS.values())).shutdown()
    assert llms[0].given == ARGUMENTS
    options = {name: value for name, value in ARGUMENTS.items() if name not in OF_LLM}
    assert keywords_of(options) == {
        "load_format": "dummy",
        "dtype": "float16",
        "launcher": "ray",
        "tensor_parallel_size": 2,
        "block_size": 32,
        "swap_space": 4,
        "gpu_memory_utilization": 0.5,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 64,
    }


def test_workers_of_ray_come_from_ray() -> None:
    for uses_ray, launcher in ((True, LauncherName.RAY), (False, LauncherName.LOCAL)):
        keywords = keywords_of(EngineArgs(worker_use_ray=uses_ray).given)
        assert config_of(None, ModelSource(), None, keywords).launcher == launcher


def test_a_request_by_name_and_by_position(engine: LLMEngine, llms: list[FakeLLM]) -> None:
    engine.add_request("1", "a", sampling_params=PARAMS)
    assert last_of(engine).prompt == "a"
    engine.add_request("2", "a", PARAMS)
    assert last_of(engine).prompt == "a"
    # Ids count, and the text is shown.
    engine.add_request("3", "a", PARAMS, list(IDS))
    both = last_of(engine)
    assert (both.request_id, both.prompt, both.prompt_token_ids) == ("3", "a", IDS)
    engine.add_request("4", None, PARAMS, list(IDS), 1.5)
    assert last_of(engine).prompt is None
    asked = llms[0].client.asked
    assert asked == [("a", PARAMS), ("a", PARAMS), (list(IDS), PARAMS), (list(IDS), PARAMS)]
    with pytest.raises(InvalidRequestError, match="sampling_params: must be absent where"):
        engine.add_request("5", "a", PARAMS, sampling_params=PARAMS)


def test_an_output_says_what_the_cache_had(engine: LLMEngine) -> None:
    engine.add_request("1", "a", PARAMS)
    assert last_of(engine).num_cached_tokens == 2


async def test_the_engine_for_asyncio_takes_token_ids_in_the_same_place(
    llms: list[FakeLLM],
) -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs())
    outputs = [each async for each in engine.generate("a", PARAMS, "1", list(IDS))]
    assert llms[0].client.asked == [(list(IDS), PARAMS)]
    last = outputs[-1]
    assert (last.request_id, last.prompt, last.prompt_token_ids) == ("1", "a", IDS)
    await engine.aclose()
    assert llms[0].is_closed and llms[0].client.is_closed


async def test_the_engine_for_asyncio_takes_a_request_at_the_call(llms: list[FakeLLM]) -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs())
    params, streams = PARAMS.clone(), []
    for temperature in (0.5, 1.5):
        params.temperature = temperature
        streams.append(engine.generate("a", params, str(temperature)))
    for stream in streams:
        async for _ in stream:
            pass
    assert [each.temperature for _, each in llms[0].client.asked] == [0.5, 1.5]
    await engine.aclose()


def test_metrics_are_where_the_time_went() -> None:
    time = TimeBreakdown(total_us=5)
    output = RequestOutput("1", "a", IDS, (), True, time_breakdown=time)
    assert output.metrics is time
    assert RequestOutput("1", "a", IDS, (), True).metrics is None


def test_an_llm_has_the_tokenizer_of_its_model() -> None:
    text = "The list class"
    with LLM(embedded_model(), target="127.0.0.1:1") as llm:
        tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(text)
    assert len(ids) > 1 and all(isinstance(each, int) for each in ids)
    assert tokenizer.decode(ids) == text
    with (
        LLM(target="127.0.0.1:1") as llm,
        pytest.raises(ConfigError, match=r"^model: must be given with a target, for its tokenizer"),
    ):
        llm.get_tokenizer()


def test_default_sampling_params_leave_to_a_model_what_it_may_say() -> None:
    with LLM(target="127.0.0.1:1") as llm:
        params = llm.get_default_sampling_params()
    assert params == SamplingParams()
    assert params.left_open == set(FILLED_IN) - {"max_tokens"}


def test_default_sampling_params_may_be_changed_and_requests_have_their_own() -> None:
    with LLM(target="127.0.0.1:1") as llm:
        params = llm.get_default_sampling_params()
        params.max_tokens = 5
        own = llm.seeded(params)
        params.max_tokens = 6
    assert own.max_tokens == 5


def test_none_asks_for_nothing_in_calls_and_prompts() -> None:
    mapping = {"prompt": "a", "multi_modal_data": None, "prompt_token_ids": None}
    assert parse_prompts(mapping) == parse_prompts("a")
    with LLM(target="127.0.0.1:1") as llm:
        assert llm.generate([], None, lora_request=None, tokenization_kwargs=None) == []
        assert llm.chat([], None, False, lora_request=None, tokenization_kwargs=None) == []
        for name in ("lora_request", "tokenization_kwargs"):
            for call in (llm.generate, llm.chat):
                with pytest.raises(InvalidRequestError, match=f"{name}: must be None, got"):
                    call([], **{name: {"a": 1}})
        assert llm.embed([], use_tqdm=False, lora_request=None) == []
        with pytest.raises(InvalidRequestError, match="data_2"):
            llm.score([], [], lora_request=None)
        adapter: Any = {"a": 1}
        with pytest.raises(InvalidRequestError, match="lora_request: must be None, got"):
            llm.embed([], lora_request=adapter)
        with pytest.raises(InvalidRequestError, match="lora_request: must be None, got"):
            llm.score([], [], lora_request=adapter)


def test_engines_take_no_adapter(engine: LLMEngine) -> None:
    engine.add_request("1", "a", PARAMS, lora_request=None)
    assert last_of(engine).finished
    adapter: Any = {"a": 1}
    with pytest.raises(InvalidRequestError, match="lora_request: must be None, got"):
        engine.add_request("2", "a", PARAMS, lora_request=adapter)
    asynchronous = AsyncLLMEngine.from_engine_args(AsyncEngineArgs())
    asynchronous.generate("a", PARAMS, lora_request=None)
    with pytest.raises(InvalidRequestError, match="lora_request: must be None, got"):
        asynchronous.generate("a", PARAMS, lora_request=adapter)
