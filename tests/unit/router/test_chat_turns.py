"""Turns that templates read in unlike ways: without text, with calls, of roles that few know."""

import json

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from quire import SamplingParams
from quire.contract.chat import ChatInput, ChatMessage
from quire.contract.errors import InvalidRequestError
from quire.contract.openai_chat import parse_messages
from router.chat.template_files import load_chat_templates
from router.chat.template_render import render_chat
from router.http.fields import Fields
from router.http.messages.blocks import read_messages
from router.http.responses.items import read_input
from tests.unit.router.chat_templates import MISTRAL, QWEN, SPECIAL_TOKENS, SYSTEM, USER

ARGUMENTS = '{"stadt":  "Zürich"}'
# As DeepSeek's: they ask whether content is none, and add arguments to texts.
DEEPSEEK = """
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '<|User|>' + message['content'] }}
    {%- elif message['role'] == 'system' %}
        {{- message['content'] }}
    {%- elif message['role'] == 'assistant' and message['content'] is none %}
        {{- '<|Assistant|><|calls|>' }}
        {%- for call in message['tool_calls'] %}
            {{- call['function']['name'] + '\\n```json\\n' + call['function']['arguments'] + '\\n```' }}
        {%- endfor %}
    {%- elif message['role'] == 'assistant' and message['content'] is not none %}
        {{- '<|Assistant|>' + message['content'] + '<|end|>' }}
    {%- elif message['role'] == 'tool' %}
        {{- '<|output|>' + message['content'] }}
    {%- endif %}
{%- endfor %}"""  # noqa: E501
# As GLM's and Qwen3-Coder's: each argument by itself.
ITEMS = """
{%- for message in messages %}
    {{- '<|' + message.role + '|>' }}
    {%- if message.content is string %}{{ message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<call>' ~ call.function.name }}
        {%- for key, value in call.function.arguments | items %}
            {{- '<key>' ~ key ~ '<value>' ~ (value if value is string else value | tojson) }}
        {%- endfor %}
    {%- endfor %}
{%- endfor %}"""
# Each writes a content in another way, and knows of tool_calls.
WRITERS = {
    "printed": "{{ message.content }}",
    "added": "{{ '<' + message.content + '>' }}",
    "joined": "{{ '<' ~ message['content'] ~ '>' }}",
    "trimmed": "{{ message.content | trim }}",
    "stripped": "{{ message.content.split('</think>')[-1].lstrip('\\n') }}",
    "got": "{{ message.get('content') }}",
    "defined": "{% if message.content is defined %}{{ message.content }}{% endif %}",
    "not none": "{% if message.content is not none %}[{{ message.content }}]{% endif %}",
    "not equal": "{% if message.content != None %}[{{ message.content }}]{% endif %}",
    "true": "{% if message.content %}[{{ message.content }}]{% endif %}",
    "string": "{% if message.content is string %}[{{ message.content }}]{% else %}{% endif %}",
    "long": "{% if message.content | length > 0 %}[{{ message.content }}]{% endif %}",
    "default": "{{ message.content | default('', true) }}",
}
CALLS = (
    "{% for call in message.tool_calls or [] %}({{ call.function.name }}{{ call.function.arguments "
    "| tojson }}){% endfor %}"
)


def openai_call(arguments, **message):
    function = {"name": "f", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return {"role": "assistant", **message, "tool_calls": [call]}


def prompt(source: str, messages, **options) -> str:
    messages = parse_messages(messages)
    return render_chat(source, SPECIAL_TOKENS, ChatInput(messages, SamplingParams(), **options))


def reference(source: str, messages) -> str:
    (text,), _ = render_jinja_template([messages], None, None, source, **SPECIAL_TOKENS)
    return text


@pytest.mark.parametrize("writer", WRITERS)
def test_content_that_is_absent_is_nowhere(writer) -> None:
    source = "{% for message in messages %}" + WRITERS[writer] + CALLS + "|{% endfor %}"
    anthropic = {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}],
            },
        ]
    }
    items = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
    ]
    user = {"role": "user", "content": "hi"}
    each = [
        parse_messages([user, openai_call("{}", content=None)]),
        parse_messages([user, openai_call("{}")]),
        read_messages(Fields(anthropic)),
        read_input(Fields({"input": items})),
    ]
    for messages in each:
        text = render_chat(source, {}, ChatInput(messages, SamplingParams()))
        assert "None" not in text and "none" not in text and "null" not in text
        assert text.count("(f{})") == 1
        assert "[]" not in text.replace("[hi]", "")


def test_templates_that_ask_for_none_are_answered_as_in_transformers() -> None:
    messages = [USER, openai_call(ARGUMENTS, content=None), {"role": "tool", "content": "21"}]
    text = prompt(DEEPSEEK, messages)
    assert text == reference(DEEPSEEK, messages)
    assert "<|calls|>f" in text
    said = [USER, {"role": "assistant", "content": ""}]
    assert prompt(DEEPSEEK, said) == reference(DEEPSEEK, said)


@pytest.mark.parametrize("template", [ITEMS, QWEN])
def test_arguments_are_a_mapping_to_templates_that_want_one(template) -> None:
    sent = [USER, openai_call(ARGUMENTS, content="x"), {"role": "tool", "content": "21"}]
    as_mapping = [USER, openai_call(json.loads(ARGUMENTS), content="x"), sent[2]]
    text = prompt(template, sent, add_generation_prompt=False)
    assert text == prompt(template, as_mapping, add_generation_prompt=False)
    assert text == reference(template, as_mapping)


@pytest.mark.parametrize("form", ["'<' + {} + '>'", "'<' ~ {} ~ '>'", "{} + '>'", "{} | string"])
def test_arguments_are_the_text_that_was_sent_where_they_are_written(form) -> None:
    arguments = "message.tool_calls[0].function.arguments"
    source = "{% for message in messages %}{{ " + form.format(arguments) + " }}{% endfor %}"
    messages = [openai_call(ARGUMENTS)]
    assert prompt(source, messages) == reference(source, messages)
    assert ARGUMENTS in prompt(source, messages)


@pytest.mark.parametrize(
    ("arguments", "text", "mapping"),
    [
        (None, "{}", {}),
        ("", "{}", {}),
        ("null", "{}", {}),
        ({}, "{}", {}),
        ('{"stadt": "Zü', '{"stadt": "Zü', {"INVALID_JSON": '{"stadt": "Zü'}),
        ("[1]", "[1]", {"INVALID_JSON": "[1]"}),
        # Half of a surrogate pair is in no prompt, neither as a value nor as a name.
        *(
            (text, text, {"INVALID_JSON": text})
            for text in (r'{"a": "\ud800"}', r'{"\udc00": 1}', r'{"a": [{"\ud83d\ud83d": 1}]}')
        ),
    ],
)
def test_a_call_that_broke_does_not_end_the_conversation(arguments, text, mapping) -> None:
    messages = [USER, openai_call(arguments)]
    assert f"```json\n{text}\n```" in prompt(DEEPSEEK, messages)
    assert json.dumps(mapping, ensure_ascii=False) in prompt(QWEN, messages)
    assert "".join(f"<key>{key}<value>{value}" for key, value in mapping.items()) in prompt(
        ITEMS, messages
    )


def test_arguments_have_a_depth() -> None:
    with pytest.raises(InvalidRequestError, match="arguments: must not be nested that deeply"):
        prompt(QWEN, [USER, openai_call("[" * 10**5)])


def test_a_developer_is_the_system_where_a_template_knows_none() -> None:
    developer = {"role": "developer", "content": "Be kind."}
    assert prompt(DEEPSEEK, [developer, USER]).startswith("Be kind.<|User|>")
    assert prompt(DEEPSEEK, [SYSTEM, developer, USER]).startswith(" Be brief. \n\nBe kind.")
    assert "Be brief. \n\nBe kind." in prompt(MISTRAL, [SYSTEM, developer, USER])
    knows = "{% for m in messages %}{% if m.role == 'developer' %}<{{ m.content }}>{% endif %}"
    knows += "{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    assert prompt(knows, [developer, USER]).startswith("<Be kind.>")
    items = Fields({"input": [developer, USER], "instructions": "Be brief."})
    text = render_chat(DEEPSEEK, {}, ChatInput(read_input(items), SamplingParams()))
    assert text.startswith("Be brief.\n\nBe kind.<|User|>")


TWO_SIDES = (
    "{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}"
    "{% elif m.role == 'assistant' %}A{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("said", ["I look.", None])
def test_calls_that_a_template_leaves_out_are_no_error(said: str | None) -> None:
    called = openai_call("{}", content=said)
    asked = f"U{USER['content']}"
    assert prompt(TWO_SIDES, [USER, called, USER]) == f"{asked}A{said or ''}{asked}"


def test_words_that_a_template_leaves_out_are_refused() -> None:
    for role in ("system", "developer", "tool", "critic"):
        for words in ("h", "Do what the user has asked for."):
            with pytest.raises(InvalidRequestError, match=r"got the role \w+, whose words it leav"):
                # A user's words are no proof that another's are there.
                prompt(TWO_SIDES, [{"role": role, "content": words}, {**USER, "content": "h"}])
        silent = [{"role": role, "content": " \n"}, USER]
        assert prompt(TWO_SIDES, silent) == f"U{USER['content']}"
    with pytest.raises(InvalidRequestError, match="got the role system"):
        # It knows one at the beginning alone, and would have gone on without the second.
        first_alone = "{{ messages[0].content }}{% for m in messages[1:] if m.role == 'user' %}"
        prompt(first_alone + "{{ m.content }}{% endfor %}", [SYSTEM, USER, SYSTEM, USER])
    assert prompt("{{ messages[0].content }}", [USER, SYSTEM]) == USER["content"]


@pytest.mark.parametrize(
    "filtered", ["upper", "lower", "tojson", "replace('a', 'b')", "truncate(40)"]
)
def test_words_that_a_template_changes_are_there(filtered) -> None:
    changes = "{% for m in messages %}{{ m.content | " + filtered + " }}{% endfor %}"
    words = 'Say "all" that you have to say, and then say it all again.'
    assert prompt(changes, [{"role": "system", "content": words}, USER])


def test_parts_of_a_content_are_lines() -> None:
    parts = [{"type": "text", "text": "one"}, "two", {"type": "input_text", "text": "three"}]
    assert parse_messages([{"role": "user", "content": parts}])[0].content == "one\ntwo\nthree"
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    [system, user] = read_messages(
        Fields({"system": blocks, "messages": [{"role": "user", "content": blocks}]})
    )
    assert (system.content, user.content) == ("one\ntwo", "one\ntwo")
    refused = {"role": "assistant", "content": None, "refusal": "No."}
    assert parse_messages([refused]) == (ChatMessage("assistant", "No."),)
    both = {**refused, "content": "Well.", "annotations": [], "function_call": None}
    assert parse_messages([both]) == (ChatMessage("assistant", "Well.\nNo."),)


def test_a_byte_order_mark_is_no_character_of_a_prompt(tmp_path) -> None:
    plain = "{{ messages[0].content }}"
    marked = "\ufeff" + plain
    file = tmp_path / "mine"
    file.write_text(marked, "utf-8")
    assert load_chat_templates(tmp_path, file).sources == {"default": plain}
    config = {"chat_template": marked, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8-sig")
    found = load_chat_templates(tmp_path)
    assert (found.sources, found.special_tokens) == ({"default": plain}, {"bos_token": "<s>"})
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "p"}), "utf-8-sig")
    assert load_chat_templates(tmp_path).sources == {"default": "p"}
    (tmp_path / "chat_template.jinja").write_text(marked, "utf-8")
    assert load_chat_templates(tmp_path).sources == {"default": plain}
