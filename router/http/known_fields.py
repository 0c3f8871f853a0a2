"""What becomes of each field that clients' APIs know: data.

Sources: the request models of OpenAI's, Anthropic's and vLLM's (0.33) releases; a test has their
names. A field is obeyed by what reads its body, refused where it asks for what is not done here,
or ignored for a reason. One that no table has is ignored, and counted by its name.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from router.http.bodies import kind_of
from router.http.fields import Fields
from router.http.other_names import FORBIDS_CALLS, NOTHING, ON_BY_DEFAULT, OTHER_NAMES

OTHER = "other"
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)


class Kind(Enum):
    """Types of JSON, as messages call them."""

    TEXT = "a string"
    BOOLEAN = "true or false"
    INTEGER = "an integer"
    NUMBER = "a number"
    OBJECT = "an object"
    ARRAY = "an array"
    ANY = "any value"


_TYPES: dict[Kind, tuple[type, ...]] = {
    Kind.TEXT: (str,),
    Kind.BOOLEAN: (bool,),
    Kind.INTEGER: (int,),
    Kind.NUMBER: (int, float),
    Kind.OBJECT: (dict,),
    Kind.ARRAY: (list,),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a field that nothing here obeys.

    Attributes:
        kind: that its value must have.
        why: it is refused, or may be ignored.
        is_refused: whether a value other than null, the default and an empty one is an error.
        allowed: values that are none all the same.
        default: of a switch.
        not_beside_tools: those of `allowed` that are none only where no tool is given.
        members: of an object, what becomes of each; those that are not here are passed over. Empty
            where the whole of it is refused.
    """

    kind: Kind
    why: str
    is_refused: bool = False
    allowed: tuple[Any, ...] = ()
    default: bool = False
    not_beside_tools: tuple[Any, ...] = ()
    members: Mapping[str, "Rule"] = field(default_factory=dict)

    def check(self, body: Fields, name: str) -> None:
        """Check the field of a body.

        Raises:
            InvalidRequestError: it has another type, or asks for what is refused.
        """
        if name not in body:
            return
        value = body.value(name)
        types = _TYPES.get(self.kind, (object,))
        is_number = isinstance(value, bool) and bool not in types and object not in types
        if not isinstance(value, types) or is_number:
            raise body.refuse(name, f"must be {self.kind.value}, got {kind_of(value)}")
        # 0 equals False, and may ask for something.
        is_none = value is self.default or value in ("", [], {}, *self.allowed)
        if body.value("tools") and value in self.not_beside_tools:
            is_none = False
        if self.members and isinstance(value, dict):
            members = body.fields(name)
            for member, rule in self.members.items():
                rule.check(members, member)
        elif self.is_refused and not is_none:
            raise body.refuse(name, f"must be absent: {self.why}")


def _ignored(kind: Kind, why: str, names: str) -> dict[str, Rule]:
    return {name: Rule(kind, why) for name in names.split()}


def _refused(kind: Kind, why: str, names: str, *allowed: Any) -> dict[str, Rule]:
    return {name: Rule(kind, why, is_refused=True, allowed=allowed) for name in names.split()}


_TO_ALL: Mapping[str, Rule] = {
    **_ignored(Kind.TEXT, "it is for the bill of another service", "user safety_identifier"),
    **_ignored(Kind.TEXT, "there is one tier", "service_tier"),
    **_ignored(Kind.TEXT, "cells are chosen by what they have cached", "session_id"),
    **_ignored(Kind.TEXT, "prefixes are found by their tokens", "prompt_cache_key"),
    **_ignored(Kind.ANY, "prefixes stay until their room is needed", "prompt_cache_retention"),
    **_ignored(Kind.ANY, "prefixes are found by their tokens", "prompt_cache_options"),
    **_ignored(Kind.ANY, "nothing is moderated", "moderation"),
    **_ignored(Kind.OBJECT, "no request may have images", "mm_processor_kwargs media_io_kwargs"),
    **_refused(Kind.ANY, "images, audio and video are not served", "mm_payload"),
    **_refused(Kind.OBJECT, "the cache is not moved to other servers", "kv_transfer_params"),
    **_refused(Kind.OBJECT, "no encoder runs elsewhere", "ec_transfer_params"),
    **_refused(Kind.BOOLEAN, "images, audio and video are not served", "return_mm_kwargs"),
    **_refused(Kind.ANY, "answers have no watermarks", "watermarking"),
}
_TO_GENERATION: Mapping[str, Rule] = {
    **_TO_ALL,
    **_ignored(Kind.INTEGER, "events come as tokens do", "stream_interval"),
    **_refused(Kind.ARRAY, "top_logprobs shows the most probable tokens", "logprob_token_ids"),
    **_refused(Kind.INTEGER, "thinking has no limit of its own", "thinking_token_budget"),
    **_refused(Kind.OBJECT, "frequency_penalty and stop end repetition", "repetition_detection"),
    **_refused(Kind.OBJECT, "no code of others is run here", "vllm_xargs"),
    **_refused(
        Kind.BOOLEAN, "token_ids and /detokenize say where tokens are", "return_token_offsets"
    ),
    **_refused(Kind.BOOLEAN, "system_fingerprint says which weights", "return_weight_versions"),
    **_refused(Kind.INTEGER, "experts are not shown", "routed_experts_prompt_start"),
    **_refused(Kind.ANY, "prompts are text or token ids", "prompt_embeds"),
    **_refused(Kind.ANY, "no code of others is run here", "logits_processors"),
    **_refused(Kind.ANY, "adapters are not served", "lora_request"),
}
_SAMPLING = (
    "n best_of use_beam_search length_penalty early_stopping temperature top_p top_k min_p seed "
    "presence_penalty frequency_penalty repetition_penalty logit_bias allowed_token_ids bad_words "
    "min_tokens stop stop_token_ids ignore_eos include_stop_str_in_output skip_special_tokens "
    "spaces_between_special_tokens truncate_prompt_tokens truncation_side structured_outputs "
    "guided_json guided_json_object guided_regex guided_choice guided_grammar json_schema regex "
    "ebnf grammar structural_tag guided_whitespace_pattern grammar_lazy grammar_triggers format "
)
_COMMON = "model priority cache_salt request_id "
_CHAT_OBEYED = (
    _SAMPLING + _COMMON + "messages tools tool_choice parallel_tool_calls chat_template_kwargs "
    "resume resumable reasoning_effort add_generation_prompt continue_final_message stream "
    "stream_options return_token_ids return_tokens_as_token_ids logprobs top_logprobs "
    "prompt_logprobs max_tokens max_completion_tokens response_format include_reasoning modalities "
    "functions function_call audio web_search_options chat_template documents echo thinking"
)
_CHAT: Mapping[str, Rule] = {
    **_TO_GENERATION,
    **_ignored(Kind.OBJECT, "nothing is stored", "metadata"),
    **_ignored(Kind.BOOLEAN, "nothing is stored", "store"),
    **_ignored(Kind.TEXT, "no model here reads it: say it in a message", "verbosity"),
    **_ignored(Kind.ANY, "drafts come from the sequence itself", "prediction"),
    **_refused(Kind.BOOLEAN, "the template writes special tokens out", "add_special_tokens"),
    **_refused(Kind.BOOLEAN, "/tokenize shows it", "return_prompt_text"),
}
_COMPLETIONS_OBEYED = (
    _SAMPLING
    + _COMMON
    + "resume resumable prompt suffix echo logprobs prompt_logprobs max_tokens stream "
    "stream_options return_token_ids return_tokens_as_token_ids add_special_tokens response_format"
)
_COMPLETIONS: Mapping[str, Rule] = {
    **_TO_GENERATION,
    **_ignored(Kind.OBJECT, "nothing is stored", "metadata"),
    **_ignored(
        Kind.BOOLEAN,
        "only conversations have turns, reasoning and calls",
        "add_generation_prompt include_reasoning parallel_tool_calls",
    ),
}
_GENERATE_OBEYED = (
    _SAMPLING + _COMMON + "prompt stream max_tokens response_format add_special_tokens"
)
_GENERATE: Mapping[str, Rule] = {
    **_COMPLETIONS,
    **_ignored(
        Kind.ANY,
        "the answer is texts alone",
        "logprobs top_logprobs prompt_logprobs include echo return_token_ids "
        "return_tokens_as_token_ids stream_options",
    ),
    **_refused(Kind.ANY, "prompts are texts here, as the model expects them", "prompt_token_ids"),
    **_refused(Kind.OBJECT, "a stream of texts has no ids to go on from", "resume"),
    **_refused(Kind.BOOLEAN, "a stream of texts has no ids to go on from", "resumable"),
}
_RESPONSES_OBEYED = (
    _SAMPLING + _COMMON + "input instructions tools tool_choice parallel_tool_calls text reasoning "
    "max_output_tokens top_logprobs include metadata stream background truncation "
    "chat_template_kwargs previous_response_id conversation prompt max_tool_calls "
    "prompt_logprobs include_reasoning resume"
)
_RESPONSES: Mapping[str, Rule] = {
    **_TO_GENERATION,
    **_ignored(Kind.BOOLEAN, "nothing is stored", "store"),
    **_ignored(Kind.OBJECT, "events have no padding", "stream_options"),
    **_refused(Kind.ARRAY, "send the whole conversation as input", "previous_input_messages"),
    **_refused(Kind.BOOLEAN, "events show the output", "enable_response_messages"),
    **_refused(Kind.ANY, "context is not shortened here", "context_management"),
    **_refused(Kind.ANY, "no program is called here", "access_programs"),
    **_refused(Kind.ANY, "images, audio and video are not served", "image"),
    **_ignored(Kind.OBJECT, "a stream runs on for the grace time", "background_options"),
}
_MESSAGES_OBEYED = (
    _SAMPLING
    + _COMMON
    + "resume resumable messages system tools tool_choice thinking stop_sequences max_tokens "
    "output_config stream return_token_ids chat_template_kwargs container mcp_servers "
    "output_format chat_template logprobs top_logprobs prompt_logprobs"
)
_MESSAGES: Mapping[str, Rule] = {
    **_TO_GENERATION,
    **_ignored(Kind.OBJECT, "nothing is stored", "metadata"),
    **_ignored(Kind.ANY, "prefixes are found by their tokens", "cache_control"),
    **_ignored(Kind.ANY, "there is one place", "inference_geo"),
    **_ignored(Kind.TEXT, "there is one speed", "speed"),
    **_ignored(Kind.OBJECT, "events show the numbers of tokens", "stream_options"),
    **_ignored(Kind.BOOLEAN, "messages show no log-probabilities", "return_tokens_as_token_ids"),
    **_ignored(Kind.ANY, "it is for the bill of another service", "user_profile_id workspace_id"),
    **_ignored(Kind.ANY, "metrics and traces say where time goes", "diagnostics"),
    **_refused(Kind.ANY, "context is not shortened here", "context_management"),
}
_VECTORS = (
    "model truncate_prompt_tokens truncation_side add_special_tokens priority cache_salt "
    "request_id prompt_embeds logits_processors lora_request "
)
_TO_VECTORS: Mapping[str, Rule] = {
    **_TO_ALL,
    **_refused(Kind.TEXT, "vectors are little-endian", "endianness", "little", "native"),
    **_ignored(Kind.ANY, "prompts are computed without padding", "padding"),
}
_EMBEDDINGS_OBEYED = (
    _VECTORS + "input messages dimensions encoding_format embed_dtype normalize use_activation "
    "add_generation_prompt continue_final_message chat_template_kwargs chat_template"
)
_SCORE_OBEYED = (
    _VECTORS + "text_1 text_2 data_1 data_2 queries documents items query top_n return_documents"
)
_SCORE: Mapping[str, Rule] = {
    **_TO_VECTORS,
    **_ignored(Kind.BOOLEAN, "a cosine is what it is", "use_activation normalize"),
    **_ignored(Kind.ANY, "the answer has no vectors", "embed_dtype encoding_format"),
    **_refused(Kind.INTEGER, "whole vectors are compared", "dimensions"),
    **_refused(
        Kind.ANY,
        "texts are text_1 and text_2, or query and documents",
        "input messages prompt prompt_token_ids",
    ),
    **_refused(Kind.TEXT, "texts are compared as they stand", "chat_template"),
    **_refused(
        Kind.BOOLEAN,
        "texts are compared as they stand",
        "add_generation_prompt continue_final_message",
    ),
    **_refused(Kind.ANY, "put it in the query", "instruction"),
    **_refused(Kind.OBJECT, "texts are compared as they stand", "chat_template_kwargs"),
    **_refused(
        Kind.INTEGER,
        "truncate_prompt_tokens is for all texts",
        "max_tokens_per_doc max_tokens_per_query",
        0,
    ),
}


class UnknownFields:
    """Counts fields that no table has, by route and name.

    Strangers choose the names: of many, or of long ones, the rest is counted as "other".

    Attributes:
        counts: so far.
    """

    MAX_NAMES = 100

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, route: str, names: Iterable[str]) -> None:
        """Count the unknown fields of a body."""
        for name in names:
            key = (route, name if _NAME.fullmatch(name) else OTHER)
            if key not in self.counts and len(self.counts) >= self.MAX_NAMES:
                key = (route, OTHER)
            self.counts[key] += 1


@dataclass(frozen=True, slots=True)
class Table:
    """The fields of an endpoint.

    Attributes:
        obeyed: names of those that its reader reads, or refuses with words of its own.
        rules: of all others that are known.
    """

    obeyed: frozenset[str]
    rules: Mapping[str, Rule]

    def check(self, body: Fields) -> list[str]:
        """Check the fields that nothing obeys; return the names of those that are not known.

        Raises:
            InvalidRequestError: as of `Rule.check`.
        """
        unknown = []
        for name in body.names():
            if (rule := self.rules.get(name)) is not None and name not in self.obeyed:
                rule.check(body, name)
            elif name not in self.obeyed:
                unknown.append(name)
        return unknown


def _table(route: str, obeyed: str, rules: Mapping[str, Rule]) -> Table:
    names = frozenset(obeyed.split())
    whole = {name: _other(name, why) for name, why in OTHER_NAMES.get(route, {}).items()}
    others = {
        name: replace(
            rule,
            members={
                member.removeprefix(f"{name}."): each
                for member, each in whole.items()
                if member.startswith(f"{name}.")
            },
        )
        for name, rule in whole.items()
        if name not in names and "." not in name
    }
    return Table(names, MappingProxyType({**others, **rules}))


def _other(name: str, why: str) -> Rule:
    """Return the rule of a field that only other endpoints know."""
    return Rule(
        Kind.ANY,
        why,
        is_refused=True,
        allowed=NOTHING.get(name, ()),
        default=name in ON_BY_DEFAULT,
        not_beside_tools=FORBIDS_CALLS.get(name, ()),
    )


TABLES: Mapping[str, Table] = {
    route: _table(route, obeyed, rules)
    for route, obeyed, rules in (
        ("/v1/chat/completions", _CHAT_OBEYED, _CHAT),
        ("/v1/completions", _COMPLETIONS_OBEYED, _COMPLETIONS),
        ("/generate", _GENERATE_OBEYED, _GENERATE),
        ("/v1/responses", _RESPONSES_OBEYED, _RESPONSES),
        ("/v1/messages", _MESSAGES_OBEYED, _MESSAGES),
        ("/v1/embeddings", _EMBEDDINGS_OBEYED, _TO_VECTORS),
        ("/score", _SCORE_OBEYED, _SCORE),
        ("/rerank", _SCORE_OBEYED, _SCORE),
    )
}
"""By the route."""
