"""The offline API, over a cluster of its own and over one that runs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import LLM, Client, SamplingParams
from quire.errors import ConfigError, InvalidRequestError

PROMPTS = ["The list class", "Return a copy of the string", "A function definition"]
PARAMS = SamplingParams(seed=4, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", kv_cache_gib=0.03125) as llm:
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
    chosen = []
    for token, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert len(position) in (2, 3)
        assert {found.rank for found in position.values()} >= {1, 2}
        assert position[token].logprob <= max(found.logprob for found in position.values()) <= 0
        chosen.append(position[token].logprob)
    assert completion.cumulative_logprob == sum(chosen)
    [plain] = llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)
    assert plain.outputs[0].logprobs is plain.outputs[0].cumulative_logprob is None


def test_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, PARAMS)
    shown = capsys.readouterr()
    assert "3/3" in shown.err
    assert "tokens/s" in shown.err
    assert shown.out == ""


def test_chat(llm: LLM) -> None:
    conversation = [{"role": "user", "content": PROMPTS[0]}]
    with pytest.raises(ConfigError, match="no chat template"):
        llm.chat(conversation)
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    [plain] = llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)
    for messages in (conversation, [conversation, conversation]):
        for output in llm.chat(messages, PARAMS, use_tqdm=False, chat_template=template):
            assert output.outputs == plain.outputs


def test_a_bad_request_is_named_and_the_others_are_given_up(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="prompt: token ids must be in"):
        llm.generate([[5], [10**6], [7]], SamplingParams(max_tokens=200), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="one for each of 3 prompts, got 2"):
        llm.generate(PROMPTS, [PARAMS, PARAMS])
    with pytest.raises(InvalidRequestError, match="prompt or prompt_token_ids, got text"):
        llm.generate({"text": "x"})
    assert len(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == 3


def test_target_is_a_running_cluster(llm: LLM) -> None:
    assert llm._cluster is not None
    with LLM(target=llm._cluster.address) as other:
        assert other.generate(PROMPTS, PARAMS, use_tqdm=False)[1].outputs == (
            llm.generate(PROMPTS[1], PARAMS, use_tqdm=False)[0].outputs
        )
        with pytest.raises(ConfigError, match="needs the model's directory"):
            other.chat([{"role": "user", "content": "x"}])
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
    with pytest.raises(ConfigError, match="does not exist"):
        LLM(tmp_path / "nowhere")
