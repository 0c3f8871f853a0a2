"""Whatever a body holds, it is a request or an error of ours."""

import json
from contextlib import suppress
from dataclasses import fields

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.contract.errors import QuireError
from quire.contract.sampling_params import SamplingParams
from router.http.bodies import parse_object
from router.http.completions.request import CompletionRequest, read_request
from router.http.embeddings.request import read_embeddings, read_rerank, read_score
from router.http.fields import Fields
from router.http.messages.request import MessageRequest
from router.http.messages.request import read_request as read_message

OTHERS = ("prompt", "model", "echo", "suffix", "stream", "stream_options", "priority", "cache_salt")
MORE = ("resumable", "resume", "response_format", "add_special_tokens", "return_token_ids")
NAMES = [*(field.name for field in fields(SamplingParams)), *OTHERS, *MORE]
# The first case takes as long as it takes to build the strategies.
STEADY = settings(suppress_health_check=[HealthCheck.too_slow])

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda each: (
        st.lists(each, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9).map(str), each, max_size=3)
    ),
    max_leaves=8,
)


@STEADY
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6))
def test_a_body_is_a_request_or_refused(values) -> None:
    body = json.dumps({"prompt": "a", **values}).encode(errors="surrogatepass")
    with suppress(QuireError):
        request = read_request(Fields(parse_object(body))).with_id("mine")
        assert isinstance(request, CompletionRequest)


PARTS = ("text", "thinking", "id", "name", "input", "tool_use_id", "content")
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image"])},
    optional=dict.fromkeys(
        ("text", "thinking", "id", "name", "input", "tool_use_id", "content"), VALUES
    ),
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", ""])},
    optional={"content": VALUES | st.lists(BLOCKS | SCALARS, max_size=4)},
)
ANTHROPICS = ("system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences")


@STEADY
@given(
    st.lists(TURNS | SCALARS, max_size=4),
    st.dictionaries(st.sampled_from([*NAMES, *ANTHROPICS]), VALUES, max_size=4),
)
def test_a_body_is_a_message_or_refused(messages, values) -> None:
    whole = {"max_tokens": 1, **values, "messages": messages}
    body = json.dumps(whole).encode(errors="surrogatepass")
    with suppress(QuireError):
        assert isinstance(read_message(Fields(parse_object(body))), MessageRequest)


@STEADY
@given(
    st.binary(max_size=64) | st.text(alphabet='{}[]":,\\ud8019eE+-. ', max_size=64).map(str.encode)
)
def test_bytes_are_an_object_or_refused(body) -> None:
    with suppress(QuireError):
        assert isinstance(parse_object(body), dict)


SIDES = ("input", "text_1", "text_2", "queries", "documents", "query")
ASKED = (*SIDES, "top_n", "encoding_format", "dimensions", "normalize", "truncate_prompt_tokens")
ITEMS = st.lists(st.text(max_size=4) | st.integers(-1, 9) | VALUES, max_size=4)


@STEADY
@given(
    st.sampled_from([read_embeddings, read_score, read_rerank]),
    st.dictionaries(st.sampled_from(ASKED), ITEMS | VALUES, max_size=6),
)
def test_a_body_asks_for_vectors_or_is_refused(read, values) -> None:
    body = json.dumps(values).encode(errors="surrogatepass")
    with suppress(QuireError):
        read(Fields(parse_object(body)))
