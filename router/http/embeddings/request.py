"""From the bodies of /v1/embeddings, /score and /rerank to requests for vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.contract.chat import ChatInput
from quire.contract.embeddings import MAX_INPUTS, EmbedInput
from quire.contract.openai_chat import parse_messages
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import MAX_TOKENS, SamplingParams
from router.http.bodies import kind_of
from router.http.fields import Fields
from router.http.sampling import check_served, truncates_right
from router.http.template_kwargs import read_template_kwargs
from router.requests.embeddings import Name, numbered

# The names of both sides in a body of /score, vLLM's of several releases.
SIDES = (
    ("text_1", "text_2"),
    ("data_1", "data_2"),
    ("queries", "documents"),
    ("queries", "items"),
)
# Stands for the prompt of a conversation until that is rendered.
_PLACEHOLDER = "\0"
_FORMATS = ("float", "base64")


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """What a body of /v1/embeddings asks for.

    Attributes:
        request: without an id.
        name: of each input, in messages.
        is_base64: whether vectors are shown as base64 of little-endian float32.
        chat: whose prompt is the only input, in the place of that of `request`; None for none.
    """

    request: EmbedInput
    name: Name
    is_base64: bool
    chat: ChatInput | None = None


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Pairs of prompts to be compared.

    Attributes:
        request: for the vectors of the first side, then for those of the second; without an id.
        name: of each of these prompts, in messages.
        num_first: prompts of the first side: one for all of the second, or one for each.
    """

    request: EmbedInput
    name: Name
    num_first: int

    @property
    def num_pairs(self) -> int:
        """How many pairs there are."""
        return len(self.request.prompts) - self.num_first


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A query, and the documents that are to be put in the order in which they fit it.

    Attributes:
        scores: of the query and each document.
        documents: texts.
        top_n: how many of them to return.
        returns_documents: whether their texts are returned, too.
    """

    scores: ScoreRequest
    documents: Sequence[str]
    top_n: int
    returns_documents: bool


def read_embeddings(body: Fields) -> EmbeddingsRequest:
    """Return what a body of /v1/embeddings asks for.

    Args:
        body: of the request.

    Raises:
        InvalidRequestError: a field is of another type, out of bounds, or not served here.
    """
    check_served(body)
    if body.text("embed_dtype", "float32") != "float32":
        raise body.refuse("embed_dtype", "must be float32")
    encoding = body.text("encoding_format", "float")
    if encoding not in _FORMATS:
        raise body.refuse("encoding_format", f"must be one of {', '.join(_FORMATS)}")
    chat = _chat(body)
    inputs, is_list = ([_PLACEHOLDER], False) if chat is not None else _inputs(body)
    normalize = body.boolean("normalize", body.boolean("use_activation", True))
    return EmbeddingsRequest(
        EmbedInput(inputs, PoolingParams(normalize, body.integer("dimensions")), **_options(body)),
        numbered("input") if is_list else lambda _: "input" if chat is None else "messages",
        encoding == "base64",
        chat,
    )


def read_score(body: Fields) -> ScoreRequest:
    """Return what a body of /score asks for; as `read_embeddings`."""
    check_served(body)
    sides = next((each for each in SIDES if each[0] in body and each[1] in body), SIDES[0])
    (first, first_is_list), (second, second_is_list) = (_texts(body, each) for each in sides)
    _check_no_others(body, sides)
    if len(first) not in (1, len(second)):
        raise body.refuse(
            sides[0],
            f"must have 1 item, or as many as {sides[1]} ({len(second)}), got {len(first)}",
        )
    names = [numbered(sides[0]) if first_is_list else lambda _: sides[0]]
    names.append(numbered(sides[1]) if second_is_list else lambda _: sides[1])
    return _score_request(body, first, second, names)


def read_rerank(body: Fields) -> RerankRequest:
    """Return what a body of /rerank asks for; as `read_embeddings`."""
    check_served(body)
    if "query" not in body:
        raise body.refuse("query", "must be a string, got none")
    query, documents = body.text("query"), _documents(body)
    _check_no_others(body, ("query", "documents"))
    top_n = body.integer("top_n") or len(documents)
    if top_n < 0:
        raise body.refuse("top_n", f"must be at least 0, got {top_n}")
    names: list[Name] = [lambda _: "query", numbered("documents")]
    return RerankRequest(
        _score_request(body, [query], documents, names),
        documents,
        top_n,
        body.boolean("return_documents", True),
    )


def _check_no_others(body: Fields, sides: tuple[str, str]) -> None:
    """Refuse texts beside those that are compared, which would be in no answer."""
    for name in ("query", *(each for pair in SIDES for each in pair)):
        if name in body and name not in sides:
            raise body.refuse(name, f"must be absent where {' and '.join(sides)} are given")


def _chat(body: Fields) -> ChatInput | None:
    """Return the conversation whose vector a body asks for, vLLM's `messages`; None for none."""
    if "chat_template" in body:
        raise body.refuse("chat_template", "must be absent: only that of the router is rendered")
    begins = body.boolean("add_generation_prompt")
    continues = body.boolean("continue_final_message")
    if begins and continues:
        raise body.refuse("add_generation_prompt", "must be false with continue_final_message")
    kwargs = read_template_kwargs(body, "")
    if "messages" not in body:
        return None
    if "input" in body:
        raise body.refuse("input", "must be absent where messages are given")
    return ChatInput(
        parse_messages(body.value("messages")),
        SamplingParams(),
        chat_template_kwargs=kwargs,
        add_generation_prompt=begins,
        continue_final_message=continues,
        model=body.text("model"),
    )


def _score_request(
    body: Fields, first: Sequence[str], second: Sequence[str], names: Sequence[Name]
) -> ScoreRequest:
    num_first = len(first)

    def name(place: int) -> str:
        return names[0](place) if place < num_first else names[1](place - num_first)

    if (number := num_first + len(second)) > MAX_INPUTS:
        raise body.refuse(
            name(MAX_INPUTS), f"must be one of at most {MAX_INPUTS} texts in all, got {number}"
        )
    request = EmbedInput([*first, *second], **_options(body))
    return ScoreRequest(request, name, num_first)


def _options(body: Fields) -> dict[str, Any]:
    """Return what the bodies have in common."""
    return {
        "model": body.text("model"),
        "truncate_prompt_tokens": body.integer("truncate_prompt_tokens"),
        "truncate_right": truncates_right(body),
        "add_special_tokens": body.boolean("add_special_tokens", True),
        "priority": body.integer("priority", 0) or 0,
        "cache_salt": body.text("cache_salt"),
    }


def _inputs(body: Fields) -> tuple[Sequence[str | Sequence[int]], bool]:
    """Return the inputs, and whether they are an array of prompts."""
    value = body.value("input")
    if isinstance(value, str):
        return [value], False
    if not isinstance(value, list) or not value:
        got = "none" if value is None or value == [] else kind_of(value)
        raise body.refuse("input", f"must be a string, token ids, or an array of them, got {got}")
    if not isinstance(value[0], str | list):
        return [_token_ids(body, "input", value)], False
    if len(value) > MAX_INPUTS:
        raise body.refuse("input", f"must have at most {MAX_INPUTS} items, got {len(value)}")
    kind = type(value[0])
    if not all(isinstance(each, kind) for each in value):
        raise body.refuse("input", "must be all strings or all token ids, got both")
    if kind is str:
        return value, True
    return [_token_ids(body, f"input[{place}]", each) for place, each in enumerate(value)], True


def _token_ids(body: Fields, name: str, values: list[Any]) -> Sequence[int]:
    for value in values:
        if type(value) is not int or not 0 <= value <= MAX_TOKENS:
            got = value if type(value) is int else kind_of(value)
            raise body.refuse(name, f"must hold token ids in [0, {MAX_TOKENS}], got {got}")
    return values


def _texts(body: Fields, name: str) -> tuple[Sequence[str], bool]:
    """Return the texts of a field, and whether they are an array."""
    texts = body.texts(name, MAX_INPUTS)
    if not texts:
        raise body.refuse(name, "must be a string or an array of strings, got none")
    return texts, not isinstance(body.value(name), str)


def _documents(body: Fields) -> list[str]:
    """Return the texts of documents: strings, or objects with a `text`."""
    texts = []
    for place, item in enumerate(body.items("documents", MAX_INPUTS)):
        text = item.get("text") if isinstance(item, dict) else item
        if not isinstance(text, str):
            raise body.refuse(
                f"documents[{place}]",
                f"must be a string, or an object with text, got {kind_of(item)}",
            )
        texts.append(text)
    if not texts:
        raise body.refuse("documents", "must be an array of strings, got none")
    return texts
