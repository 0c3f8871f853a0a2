"""Conversations on a real cluster: gRPC, OpenAI's client and the rendered prompt, one answer."""

import openai
import pytest
from openai import OpenAI

from quire import Client, SamplingParams

MESSAGES = [
    {"role": "system", "content": "You know Python."},
    {"role": "user", "content": "What does list.sort do?"},
]
PROMPT = "System: You know Python.\n\nUser: What does list.sort do?\n\nAssistant:"
NUM_TOKENS = 12
SEED = 7


@pytest.fixture
def clients(shared_clusters):
    cluster = shared_clusters.get(port=0)
    base_url = f"http://{cluster.router.http_address}/v1"
    with Client(cluster.router.address) as grpc, OpenAI(base_url=base_url, api_key="none") as http:
        yield grpc, http


def test_one_conversation_is_answered_alike_everywhere(clients) -> None:
    grpc, http = clients
    params = SamplingParams(max_tokens=NUM_TOKENS, seed=SEED, n=2, logprobs=2, temperature=0.8)
    plain = grpc.generate_all(PROMPT, params)
    chat = grpc.chat_all(MESSAGES, params)
    assert [each.token_ids for each in chat] == [each.token_ids for each in plain]
    asked = {"model": "", "messages": MESSAGES, "seed": SEED, "n": 2, "temperature": 0.8}
    asked |= {"max_tokens": NUM_TOKENS, "logprobs": True, "top_logprobs": 2}
    answer = http.chat.completions.create(**asked, extra_body={"return_token_ids": True})
    for choice, same in zip(answer.choices, plain, strict=True):
        assert tuple(choice.model_extra["token_ids"]) == same.token_ids
        assert choice.message.content == same.text
        for shown, position in zip(choice.logprobs.content, same.logprobs, strict=True):
            assert shown.logprob == position.logprobs[0]
            assert [top.logprob for top in shown.top_logprobs] == list(position.logprobs[1:])
    streamed: list[list[int]] = [[], []]
    for chunk in http.chat.completions.create(**asked, stream=True):
        [choice] = chunk.choices
        streamed[choice.index] += choice.model_extra["token_ids"]
    assert [tuple(each) for each in streamed] == [each.token_ids for each in plain]


def test_a_response_is_the_same_answer(clients) -> None:
    grpc, http = clients
    same = grpc.generate(PROMPT, SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0))
    asked = {"model": "", "temperature": 0.0, "max_output_tokens": NUM_TOKENS}
    instructions, question = (message["content"] for message in MESSAGES)
    asked |= {"instructions": instructions, "input": question}
    assert http.responses.create(**asked).output_text == same.text
    with http.responses.create(**asked, stream=True, background=True) as stream:
        first = next(iter(stream))
    rest = list(http.responses.retrieve(first.response.id, stream=True, starting_after=0))
    assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
    assert rest[-1].response.output_text == same.text
    with pytest.raises(openai.BadRequestError, match="previous_response_id: must be absent"):
        http.responses.create(**asked, previous_response_id=first.response.id)
