"""The offline API, over a cluster of its own and over one that runs."""

import json
import math
import operator
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quire import (
    LLM,
    BeamSearchParams,
    Client,
    EmbeddingRequestOutput,
    PoolingParams,
    SamplingParams,
    ScoringRequestOutput,
)
from quire.contract.errors import ConfigError, InvalidRequestError

PROMPTS = ["The list class", "Return a copy of the string", "A function definition"]
PARAMS = SamplingParams(seed=4, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", kv_cache_gib=0.03125, num_threads=1) as llm:
        yield llm


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    lengths = [16, 3, 9]
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    together = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.prompt for output in together] == PROMPTS
    assert [len(output.outputs[0].token_ids) for output in together] == lengths
    for prompt, each, output in zip(PROMPTS, params, together, strict=True):
        [alone] = llm.generate(prompt, each, use_tqdm=False)
        assert alone.outputs == output.outputs
        assert alone.prompt_token_ids == output.prompt_token_ids
        assert output.outputs[0].finish_reason == "length"
        assert output.finished


def test_more_prompts_than_run_at_once(llm: LLM) -> None:
    prompts = [[5 + i % 200, 7] for i in range(400)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=2), use_tqdm=False)
    assert [list(output.prompt_token_ids) for output in outputs] == prompts
    assert outputs[3].outputs == outputs[203].outputs


def test_every_way_to_give_a_prompt(llm: LLM) -> None:
    [text] = llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)
    ids = list(text.prompt_token_ids)
    for prompts in (ids, [ids], {"prompt": PROMPTS[0]}, [{"prompt_token_ids": ids}]):
        [output] = llm.generate(prompts, PARAMS, use_tqdm=False)
        assert output.outputs == text.outputs
    assert llm.generate([], PARAMS) == []


def test_stop_reason(llm: LLM) -> None:
    [free] = llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)
    token = free.outputs[0].token_ids[2]
    params = SamplingParams(seed=4, max_tokens=16, stop_token_ids=(token,), ignore_eos=True)
    [stopped] = llm.generate(PROMPTS[0], params, use_tqdm=False)
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", token)
    params = SamplingParams(seed=4, max_tokens=16, stop=("e",), ignore_eos=True)
    [stopped] = llm.generate(PROMPTS[0], params, use_tqdm=False)
    assert stopped.outputs[0].stop_reason == "e"
    assert "e" not in stopped.outputs[0].text


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(seed=4, max_tokens=6, ignore_eos=True, logprobs=2)
    [output] = llm.generate(PROMPTS[0], params, use_tqdm=False)
    [completion] = output.outputs
    assert completion.logprobs is not None
    chosen, text = [], ""
    for token, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert len(position) in (2, 3)
        assert {found.rank for found in position.values()} >= {1, 2}
        assert position[token].logprob <= max(found.logprob for found in position.values()) <= 0
        chosen.append(position[token].logprob)
        text += position[token].decoded_token
    assert text == completion.text
    assert completion.cumulative_logprob == sum(chosen)
    [plain] = llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)
    assert plain.outputs[0].logprobs is plain.outputs[0].cumulative_logprob is None


def test_several_outputs_of_a_prompt(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=4, max_tokens=12, ignore_eos=True)
    [output] = llm.generate(PROMPTS[0], params, use_tqdm=False)
    assert [each.index for each in output.outputs] == [0, 1, 2]
    assert len({each.token_ids for each in output.outputs}) == 3
    [single] = llm.generate(
        PROMPTS[0], SamplingParams(seed=4, max_tokens=12, ignore_eos=True), use_tqdm=False
    )
    assert single.outputs[0].token_ids == output.outputs[0].token_ids


def test_best_of_returns_the_most_probable(llm: LLM) -> None:
    common = {"seed": 4, "max_tokens": 12, "ignore_eos": True}
    [all_four] = llm.generate(PROMPTS[0], SamplingParams(n=4, logprobs=0, **common), use_tqdm=False)
    [best] = llm.generate(PROMPTS[0], SamplingParams(n=2, best_of=4, **common), use_tqdm=False)
    ranked = sorted(all_four.outputs, key=lambda each: -each.cumulative_logprob)  # type: ignore[operator]
    assert [each.token_ids for each in best.outputs] == [each.token_ids for each in ranked[:2]]
    assert [each.index for each in best.outputs] == [0, 1]
    assert best.outputs[0].logprobs is None
    assert best.outputs[0].cumulative_logprob == ranked[0].cumulative_logprob


def test_beam_search(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=10)
    found = llm.beam_search(PROMPTS, params, use_tqdm=False)
    assert [len(output.sequences) for output in found] == [3, 3, 3]
    for prompt, output in zip(PROMPTS, found, strict=True):
        assert all(each.text.startswith(prompt) for each in output.sequences)
        totals = [each.cum_logprob for each in output.sequences]
        assert len(set(totals)) == 3
        [greedy] = llm.beam_search(prompt, BeamSearchParams(1, 10), use_tqdm=False)
        assert len(greedy.sequences) == 1
        assert greedy.sequences[0].cum_logprob <= max(totals) + 1e-6
    with pytest.raises(InvalidRequestError, match="beam_width: must be in"):
        llm.beam_search(PROMPTS, BeamSearchParams(65, 10))


def test_prompt_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2, ignore_eos=True)
    for _ in range(2):  # the second time the prefix could be in the cache
        [output] = llm.generate(PROMPTS[1], params, use_tqdm=False)
        found = output.prompt_logprobs
        assert found is not None
        assert len(found) == len(output.prompt_token_ids)
        assert found[0] is None
        for token, position in zip(output.prompt_token_ids[1:], found[1:], strict=True):
            assert position is not None
            assert token in position
            assert {each.rank for each in position.values()} >= {1, 2}
            assert position[token].decoded_token in PROMPTS[1]


def test_truncated_prompts_and_banned_words(llm: LLM) -> None:
    ids = list(range(20, 60))
    params = SamplingParams(temperature=0.0, max_tokens=8, truncate_prompt_tokens=7)
    [cut] = llm.generate(ids, params, use_tqdm=False)
    whole = SamplingParams(temperature=0.0, max_tokens=8)
    [same] = llm.generate(ids[-7:], whole, use_tqdm=False)
    assert cut.outputs[0].token_ids == same.outputs[0].token_ids
    assert list(cut.prompt_token_ids) == ids[-7:]
    reporting = replace(params, prompt_logprobs=0)
    [cut] = llm.generate(ids, reporting, use_tqdm=False)
    assert cut.prompt_logprobs is not None
    assert [each and next(iter(each)) for each in cut.prompt_logprobs] == [None, *ids[-6:]]
    [free] = llm.generate(PROMPTS[0], whole, use_tqdm=False)
    first, second = free.outputs[0].token_ids[:2]
    banned = SamplingParams(temperature=0.0, max_tokens=8, bad_words_token_ids=((first, second),))
    [other] = llm.generate(PROMPTS[0], banned, use_tqdm=False)
    assert other.outputs[0].token_ids[0] == first
    assert other.outputs[0].token_ids[1] != second


def test_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, PARAMS)
    shown = capsys.readouterr()
    assert "3/3" in shown.err
    assert "tokens/s" in shown.err
    assert shown.out == ""


def test_embed(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    found = llm.embed(PROMPTS, use_tqdm=False)
    assert [type(each) for each in found] == [EmbeddingRequestOutput] * 3
    token_ids = [each.prompt_token_ids for each in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    assert [each.prompt_token_ids for each in found] == token_ids
    (model,) = llm._client.list_models()
    for prompt, each in zip(PROMPTS, found, strict=True):
        assert each.finished
        assert each.outputs.hidden_size == len(each.outputs.embedding) == model.embedding_size
        assert math.isclose(math.hypot(*each.outputs.embedding), 1.0, abs_tol=1e-6)
        [alone] = llm.embed(prompt, use_tqdm=False)
        [salted] = llm.embed({"prompt": prompt, "cache_salt": "s"}, use_tqdm=False)
        assert alone.outputs == salted.outputs == each.outputs
    [raw] = llm.embed(PROMPTS[0], use_tqdm=False, pooling_params=PoolingParams(normalize=False))
    length = math.hypot(*raw.outputs.embedding)
    scaled = [each / length for each in raw.outputs.embedding]
    assert scaled == pytest.approx(found[0].outputs.embedding, abs=1e-6)
    [cut] = llm.embed(PROMPTS[0], truncate_prompt_tokens=2)
    assert cut.prompt_token_ids == token_ids[0][-2:]
    assert "1/1" in capsys.readouterr().err
    many = [[5 + place % 300] for place in range(300)]
    assert [each.prompt_token_ids for each in llm.embed(many, use_tqdm=False)] == [
        tuple(each) for each in many
    ]
    assert llm.embed([], use_tqdm=False) == []
    with pytest.raises(InvalidRequestError, match=r"prompts\[200\]: token ids must be in"):
        llm.embed([*many[:200], [10**6]], use_tqdm=False)


def test_score(llm: LLM) -> None:
    found = llm.score(PROMPTS[0], PROMPTS, use_tqdm=False)
    assert [type(each) for each in found] == [ScoringRequestOutput] * 3
    assert found[0].outputs.score == pytest.approx(1.0)
    vectors = [each.outputs.embedding for each in llm.embed(PROMPTS, use_tqdm=False)]
    for vector, each in zip(vectors, found, strict=True):
        assert each.outputs.score == pytest.approx(sum(map(operator.mul, vectors[0], vector)))
    pairs = llm.score(PROMPTS, PROMPTS[::-1], use_tqdm=False)
    assert pairs[0].outputs.score == pairs[2].outputs.score == found[2].outputs.score
    assert pairs[0].prompt_token_ids == found[2].prompt_token_ids
    with pytest.raises(InvalidRequestError, match="data_1: must have 1 item, or as many as data_2"):
        llm.score(PROMPTS[:2], PROMPTS)
    with pytest.raises(InvalidRequestError, match="data_2: must have at least 1 item, got 0"):
        llm.score("x", [])


def test_chat(llm: LLM) -> None:
    conversation = [{"role": "user", "content": PROMPTS[0]}]
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    [plain] = llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)
    for messages in (conversation, [conversation, conversation]):
        for output in llm.chat(messages, PARAMS, use_tqdm=False, chat_template=template):
            assert output.outputs == plain.outputs
    # The demo model's own, rendered by the router.
    [own] = llm.chat(conversation, PARAMS, use_tqdm=False)
    parameters = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    parameters["additionalProperties"] = False
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    asked = {"tools": [tool], "tool_choice": tool, "parse_output": True}
    [called] = llm.chat(conversation, SamplingParams(max_tokens=200), use_tqdm=False, **asked)
    [call] = called.outputs[0].tool_calls
    assert (call.name, called.outputs[0].content, called.outputs[0].reasoning) == ("f", "", "")
    assert json.loads(call.arguments)["x"] in (1, 2)
    with pytest.raises(ConfigError, match="chat_template: must be the router's"):
        llm.chat(conversation, chat_template="x", parse_output=True)
    text = f"User: {PROMPTS[0]}\n\nAssistant:"
    assert own.outputs == llm.generate(text, PARAMS, use_tqdm=False)[0].outputs
    assert own.prompt_token_ids == tuple(llm._client.tokenize(text))
    with pytest.raises(InvalidRequestError, match=r"messages\[1\].content\[0\].type: must be text"):
        llm.chat([*conversation, {"role": "user", "content": [{"type": "image_url"}]}])


def test_a_bad_request_is_named_and_the_others_are_given_up(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="prompt: token ids must be in"):
        llm.generate([[5], [10**6], [7]], SamplingParams(max_tokens=200), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="needs one for each of 3 prompts, got 2"):
        llm.generate(PROMPTS, [PARAMS, PARAMS])
    with pytest.raises(InvalidRequestError, match="may have cache_salt, got text"):
        llm.generate({"text": "x"})
    with pytest.raises(InvalidRequestError, match="got prompt, cache_sold"):
        llm.generate({"prompt": "x", "cache_sold": "x"})
    with pytest.raises(InvalidRequestError, match="priority: needs one for each of 1 prompts"):
        llm.generate("x", priority=[1, 2])
    with pytest.raises(InvalidRequestError, match="priority: must be in"):
        llm.generate("x", priority=[101], use_tqdm=False)
    assert len(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == 3


def test_an_interrupt_waits_for_no_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for searches either, which show nothing before their end."""

    @contextmanager
    def interrupting(total: int, show: bool) -> Iterator[Callable[[int], None]]:
        def advance(num_tokens: int) -> None:
            raise KeyboardInterrupt

        yield advance

    monkeypatch.setattr("launch.llm_requests.progress_bar", interrupting)
    search = SamplingParams(
        n=5, use_beam_search=True, temperature=0.0, max_tokens=900, ignore_eos=True
    )
    (before,) = next(iter(llm._client.watch_cluster()))
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, [search, search, PARAMS])
    monkeypatch.undo()
    for (cell,) in llm._client.watch_cluster():
        if cell.state.num_running == cell.state.num_waiting == 0:
            break
    num_tokens = cell.state.tokens_total - before.state.tokens_total
    assert num_tokens < search.n * search.max_tokens, "a search ran to its end"
    assert llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)[0].finished


def test_target_is_a_running_cluster(llm: LLM) -> None:
    assert llm._cluster is not None
    with LLM(target=llm._cluster.address) as other:
        assert other.generate(PROMPTS, PARAMS, use_tqdm=False)[1].outputs == (
            llm.generate(PROMPTS[1], PARAMS, use_tqdm=False)[0].outputs
        )
        conversation = [{"role": "user", "content": PROMPTS[0]}]
        chats = [each.chat(conversation, PARAMS, use_tqdm=False)[0] for each in (llm, other)]
        assert chats[0].outputs == chats[1].outputs
        with pytest.raises(ConfigError, match="needs the model's path"):
            other.chat(conversation, chat_template="x")
    with Client(llm._cluster.address) as client:
        assert client.generate(PROMPTS[0], PARAMS).token_ids


def test_close_ends_every_process(tmp_path: Path) -> None:
    llm = LLM(kv_cache_gib=0.03125)
    assert llm._cluster is not None
    pids = [service.pid for service in llm._cluster._cluster.services]
    llm.close()
    llm.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(ConfigError, match=r"model: must be a directory or a \.gguf file"):
        LLM(tmp_path / "nowhere")


def test_prompts_are_cut_as_their_parameters_say(llm: LLM) -> None:
    ids = [5, 6, 7, 8, 9]

    def left_of(**own: int) -> list[int]:
        params = replace(PARAMS, max_tokens=2, **own)
        [output] = llm.generate([ids], params, use_tqdm=False)
        [alone] = llm.generate([list(output.prompt_token_ids)], PARAMS, use_tqdm=False)
        assert output.outputs[0].token_ids == alone.outputs[0].token_ids[:2]
        return list(output.prompt_token_ids)

    assert left_of(truncate_prompt_tokens=2) == [8, 9]
    assert left_of(truncate_prompt_tokens=2, truncate_right=True) == [5, 6]
    assert left_of(truncate_prompt_tokens=-1) == ids
