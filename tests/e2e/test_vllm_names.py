"""What vLLM's users type: models by name, prompts and parameters in its forms, its engines."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from launch.cluster.config import embedded_model
from quire import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineArgs,
    LLMEngine,
    RequestOutput,
    SamplingParams,
)
from quire.contract.errors import ConfigError, InvalidRequestError, RequestExistsError

NAME, COMMIT = "someone/tiny", "0" * 39 + "1"
PROMPTS = ["The list class", "Return a copy of the string", "A function definition"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A cluster whose model is found by its name, in a cache as huggingface-hub leaves it."""
    cache = tmp_path_factory.mktemp("hub")
    repository = cache / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / COMMIT).symlink_to(embedded_model())
    with LLM(
        model=NAME,
        download_dir=cache,
        tokenizer=NAME,
        trust_remote_code=False,
        dtype="float",
        quantization=None,
        seed=7,
        kv_cache_gib=0.03125,
        num_threads=1,
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def engine(llm: LLM) -> Iterator[LLMEngine]:
    engine = LLMEngine.from_engine_args(EngineArgs(target=llm.target))
    yield engine
    engine.shutdown()
    engine.shutdown()


def expected(llm: LLM, params: SamplingParams = GREEDY) -> dict[str, RequestOutput]:
    return {each.prompt or "": each for each in llm.generate(PROMPTS, params, use_tqdm=False)}


def test_a_model_has_the_name_that_it_was_asked_for_by(llm: LLM) -> None:
    assert [each.name for each in llm._client.list_models()] == [NAME]


def test_prompts_and_parameters_in_vllms_forms(llm: LLM) -> None:
    [text] = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    ids = list(text.prompt_token_ids)
    for prompt_token_ids in (ids, [ids]):
        [output] = llm.generate(
            prompt_token_ids=prompt_token_ids, sampling_params=GREEDY, use_tqdm=False
        )
        assert output.outputs == text.outputs
        assert output.prompt is None
    # Ids count, and the text is shown; all by position, as in vLLM's first release.
    [both] = llm.generate("x", GREEDY, list(text.prompt_token_ids), False)
    assert (both.prompt, both.outputs) == ("x", text.outputs)
    with pytest.raises(InvalidRequestError, match="must be one for each of 2 prompts, got 1"):
        llm.generate(["x", "y"], prompt_token_ids=[1])
    with pytest.raises(InvalidRequestError, match="prompt_token_ids, got neither"):
        llm.generate()
    [default] = llm.generate("x", SamplingParams(ignore_eos=True, top_k=-1), use_tqdm=False)
    assert len(default.outputs[0].token_ids) == 16
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop="e")
    [stopped] = llm.generate(PROMPTS[0], params, use_tqdm=False)
    assert stopped.outputs[0].stop_reason == "e"
    assert text.outputs[0].text.startswith(stopped.outputs[0].text)
    assert stopped.outputs[0].finished()


def test_the_seed_of_an_engine_is_that_of_its_prompts(llm: LLM) -> None:
    llm._next_seed = 7
    drawn = llm.generate(PROMPTS[:2] * 2, SamplingParams(), use_tqdm=False)
    given = llm.generate(
        PROMPTS[:2] * 2, [SamplingParams(seed=7 + i) for i in range(4)], use_tqdm=False
    )
    assert [each.outputs for each in drawn] == [each.outputs for each in given]


def test_penalties_count_the_output_and_repetition_the_prompt_too(llm: LLM) -> None:
    """Where a token of the prompt and another may come, as vLLM documents each penalty."""
    [plain] = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    prompt = plain.prompt_token_ids
    others = [token for token in range(20, 100) if token not in prompt][:8]
    pairs = [[used, other] for used in dict.fromkeys(prompt) for other in others]

    def first_tokens(**penalties: float) -> list[int]:
        common = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True, **penalties}
        params = [SamplingParams(allowed_token_ids=pair, **common) for pair in pairs]
        outputs = llm.generate([PROMPTS[0]] * len(pairs), params, use_tqdm=False)
        return [each.outputs[0].token_ids[0] for each in outputs]

    free = first_tokens()
    assert first_tokens(presence_penalty=2.0, frequency_penalty=2.0) == free
    changed = 0
    for pair, before, after in zip(pairs, free, first_tokens(repetition_penalty=9.0), strict=True):
        if after != before:
            changed += 1
            assert [before, after] == pair
    assert changed > 0


def test_steps_of_an_engine_bring_what_llm_does(llm: LLM, engine: LLMEngine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1, n=1)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, params)
    assert engine.get_num_unfinished_requests() == 3
    with pytest.raises(RequestExistsError):
        engine.add_request("1", "x")
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if (before := last.get(output.request_id)) is not None:
                ids = before.outputs[0].token_ids
                assert output.outputs[0].token_ids[: len(ids)] == ids
                assert not before.finished
            last[output.request_id] = output
    assert engine.step() == []
    wanted = expected(llm, params)
    assert sorted(last) == ["0", "1", "2"]
    for number, prompt in enumerate(PROMPTS):
        output = last[str(number)]
        assert (output.prompt, output.finished) == (prompt, True)
        assert output.prompt_token_ids == wanted[prompt].prompt_token_ids
        assert output.outputs == wanted[prompt].outputs


def test_an_llm_has_an_engine_that_ends_with_it(llm: LLM) -> None:
    with LLM(target=llm.target) as other:
        engine = other.llm_engine
        assert isinstance(engine, LLMEngine)
        assert other.llm_engine is engine
        # As in 0.1.2: parameters by name, token ids in the fourth place.
        ids = list(expected(llm)[PROMPTS[1]].prompt_token_ids)
        engine.add_request("1", PROMPTS[0], sampling_params=GREEDY)
        engine.add_request("2", PROMPTS[0], GREEDY, ids)
        last: dict[str, RequestOutput] = {}
        while engine.has_unfinished_requests():
            last |= {each.request_id: each for each in engine.step()}
        assert [last[each].prompt for each in "12"] == [PROMPTS[0], PROMPTS[0]]
        for number, prompt in (("1", PROMPTS[0]), ("2", PROMPTS[1])):
            assert last[number].outputs == expected(llm)[prompt].outputs
        engine.add_request("3", "x", SamplingParams(max_tokens=None, ignore_eos=True))
    assert not engine.has_unfinished_requests()
    assert engine._loop.is_closed()
    assert expected(llm), "the cluster is another's, and stays"


def test_the_tokenizer_is_that_of_the_router(llm: LLM, engine: LLMEngine) -> None:
    tokenizer = llm.get_tokenizer()
    for prompt, output in expected(llm).items():
        assert tuple(tokenizer.encode(prompt)) == output.prompt_token_ids
        assert tokenizer.decode(list(output.prompt_token_ids)) == prompt
    assert llm.llm_engine.get_tokenizer().encode("x") == tokenizer.encode("x")
    # That of a cluster whose model is not known by its path is not here.
    with pytest.raises(ConfigError, match=r"^model: must be given with a target"):
        engine.get_tokenizer()


def test_default_parameters_are_those_of_the_model(llm: LLM) -> None:
    """Its generation_config.json has a temperature of 0.8, whatever they hold themselves."""
    default = replace(llm.get_default_sampling_params(), temperature=0.0, seed=5)
    explicit = SamplingParams(temperature=0.8, seed=5)
    [left, given] = (llm.generate(PROMPTS, each, use_tqdm=False) for each in (default, explicit))
    assert [each.outputs for each in left] == [each.outputs for each in given]


def test_an_output_says_what_the_cache_had_and_where_time_went(llm: LLM, engine: LLMEngine) -> None:
    ids = list(range(60, 100))  # of nobody else; two blocks of 16, and more
    outputs = [
        llm.generate(ids, GREEDY, use_tqdm=False, include_time_breakdown=asked)[0]
        for asked in (False, True)
    ]
    assert [each.num_cached_tokens for each in outputs] == [0, 32]
    assert outputs[0].metrics is None
    assert outputs[1].metrics is not None
    assert outputs[1].metrics == outputs[1].time_breakdown
    assert outputs[1].metrics.total_us > 0
    engine.add_request("cached", ids, GREEDY)
    steps: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        steps += engine.step()
    assert steps[-1].num_cached_tokens == 32


def test_an_aborted_request_is_forgotten(llm: LLM, engine: LLMEngine) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    engine.add_request("long", "x", long)
    engine.step()
    engine.add_request("short", {"prompt": PROMPTS[0]}, GREEDY)
    engine.abort_request("long")
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert {each.request_id for each in outputs} == {"short"}
    assert outputs[-1].outputs == expected(llm)[PROMPTS[0]].outputs


def test_what_is_refused_is_raised_by_a_step(engine: LLMEngine) -> None:
    engine.add_request("bad", [10**6], GREEDY)
    engine.add_request("good", PROMPTS[0], GREEDY)
    refused = []
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        try:
            outputs += engine.step()
        except InvalidRequestError as error:
            refused.append(error)
    assert len(refused) == 1
    assert "prompt: token ids must be in" in str(refused[0])
    assert outputs[-1].finished


async def test_the_engine_for_asyncio(llm: LLM) -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(target=llm.target))

    async def last(prompt: str, number: int) -> RequestOutput:
        outputs = [
            each async for each in engine.generate(prompt, GREEDY, request_id=f"async {number}")
        ]
        lengths = [len(each.outputs[0].token_ids) for each in outputs]
        assert lengths == sorted(lengths)
        return outputs[-1]

    found = await asyncio.gather(*(last(prompt, i) for i, prompt in enumerate(PROMPTS)))
    wanted = await asyncio.to_thread(expected, llm)
    assert [each.outputs for each in found] == [wanted[prompt].outputs for prompt in PROMPTS]

    long = SamplingParams(max_tokens=None, ignore_eos=True)
    reasons = []
    async for output in engine.generate("x", long, request_id="given up"):
        reasons.append(output.outputs[0].finish_reason)
        if len(reasons) == 1:
            await engine.abort("given up")
    assert reasons[-1] == "abort"
    await engine.aclose()
