"""Prompts of conversations: those of transformers, and what a template cannot do."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
import pytest_asyncio
from transformers.utils.chat_template_utils import render_jinja_template

from launch.cluster.config import embedded_model
from quire import SamplingParams
from quire.contract.chat import ChatInput, ChatMessage
from quire.contract.errors import ConfigError, InvalidRequestError
from quire.contract.openai_chat import parse_messages, parse_tools
from router.chat import template_render
from router.chat.template import ChatTemplate
from router.chat.template_files import ChatTemplates, load_chat_templates
from tests.gguf_files import tokenizer_metadata, write_gguf
from tests.unit.router.chat_templates import (
    ANSWER,
    CONVERSATIONS,
    REFUSED,
    SPECIAL_TOKENS,
    SYSTEM,
    TEMPLATES,
    TOOL,
    USER,
)

NOW = 1_700_000_000
DEMO = load_chat_templates(embedded_model())
EACH = {**TEMPLATES, "demo": DEMO.sources["default"]}
HI = [ChatMessage("user", "Hi")]


def conversation(messages, tools=(), **others) -> dict[str, object]:
    """What the renderer is sent for messages in OpenAI's shape."""
    chat = ChatInput(
        parse_messages(messages), SamplingParams(), parse_tools(list(tools)), now=NOW, **others
    )
    return template_render.as_json(chat)


def reference(source: str, messages, tools, monkeypatch, **options) -> str:
    class Frozen(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(NOW)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Frozen)
    (text,), _ = render_jinja_template([messages], tools, None, source, **options, **SPECIAL_TOKENS)
    return text


@pytest.mark.parametrize("template", EACH)
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_prompts_are_those_of_transformers(
    template, name, add_generation_prompt, monkeypatch
) -> None:
    messages, has_tools, kwargs = CONVERSATIONS[name]
    tools = [TOOL] if has_tools else None
    sent = conversation(
        messages,
        tools or (),
        chat_template_kwargs=json.dumps(kwargs),
        add_generation_prompt=add_generation_prompt,
    )
    if (template, name) in REFUSED:
        with pytest.raises(InvalidRequestError, match="messages: must be what the chat template"):
            template_render.render(EACH[template], SPECIAL_TOKENS, sent, 10**6)
        return
    if template == "chatml":
        # It adds a content that is none to a text; here that is empty.
        messages = [{**each, "content": each.get("content") or ""} for each in messages]
    expected = reference(
        EACH[template],
        messages,
        tools,
        monkeypatch,
        add_generation_prompt=add_generation_prompt,
        **kwargs,
    )
    text = template_render.render(EACH[template], SPECIAL_TOKENS, sent, 10**6)
    assert text == expected
    assert text.count("<s>") <= 1


@pytest.mark.parametrize("template", EACH)
@pytest.mark.parametrize("end", [" So it", "So it is: "])
def test_the_last_message_is_continued_as_in_transformers(template, end, monkeypatch) -> None:
    messages = [SYSTEM, USER, {**ANSWER, "content": end}]
    expected = reference(EACH[template], messages, None, monkeypatch, continue_final_message=True)
    sent = conversation(messages, continue_final_message=True)
    text = template_render.render(EACH[template], SPECIAL_TOKENS, sent, 10**6)
    assert text == expected
    assert text.endswith(end.strip()) or text.endswith(end)


def test_what_a_template_cannot_be_given_is_named() -> None:
    for sent, field in (
        ({**conversation([USER]), "now": 2**62}, "now: must be a time"),
        (conversation([USER], chat_template_kwargs="{"), "chat_template_kwargs: must be JSON"),
        (
            conversation([USER], chat_template_kwargs='{"a": 1e400}'),
            "must be JSON, got .* overflows",
        ),
        (conversation([USER], chat_template_kwargs="[]"), "must be a JSON object, got list"),
        (
            conversation([USER], chat_template_kwargs=r'{"\ud800": 1}'),
            "chat_template_kwargs: must be Unicode text, got half of a surrogate pair",
        ),
        (
            conversation([USER], chat_template_kwargs="[" * 10**5),
            "chat_template_kwargs: must (not be nested|be JSON)",
        ),
        (
            conversation([{"role": "user"}], continue_final_message=True),
            "continue_final_message: needs a last message with content",
        ),
    ):
        with pytest.raises(InvalidRequestError, match=field):
            template_render.render(EACH["chatml"], {}, sent, 10**6)
    drops = "{{ messages | length }}"
    with pytest.raises(InvalidRequestError, match="leaves out the end of the last message"):
        sent = conversation([USER], continue_final_message=True)
        template_render.render(drops, {}, sent, 10**6)


def test_templates_are_found_where_transformers_looks(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": "</s>",
        "chat_template": [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "tools"},
        ],
    }
    assert not load_chat_templates(tmp_path).sources
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = load_chat_templates(tmp_path)
    assert found.source(has_tools=False) == "plain"
    assert found.source(has_tools=True) == "tools"
    assert found.special_tokens == SPECIAL_TOKENS
    (tmp_path / "chat_template.json").write_text('{"chat_template": "processor"}')
    assert load_chat_templates(tmp_path).source(has_tools=False) == "processor"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert load_chat_templates(tmp_path).sources == {"default": "jinja"}
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "rag.jinja").write_text("documents")
    both = {"default": "jinja", "rag": "documents"}
    assert load_chat_templates(tmp_path).sources == both
    (more / "default.jinja").write_text("additional")
    assert load_chat_templates(tmp_path).sources == {**both, "default": "additional"}
    file = tmp_path / "mine"
    with pytest.raises(ConfigError, match=r"chat_template: .*mine cannot be read"):
        load_chat_templates(tmp_path, file)
    file.write_text("mine")
    assert load_chat_templates(tmp_path, file) == ChatTemplates({"default": "mine"}, SPECIAL_TOKENS)


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja", "mine"]
)
def test_a_template_that_is_no_utf8_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes("für".encode("latin-1"))
    with pytest.raises(ConfigError, match=rf"^chat_template: .*/{name} must be UTF-8, got .* 1$"):
        load_chat_templates(tmp_path, file if name == "mine" else None)


def test_a_gguf_file_has_its_own(tmp_path: Path) -> None:
    metadata = tokenizer_metadata(embedded_model())
    # It rewrites the directory's weights.
    model = shutil.copytree(embedded_model(), tmp_path / "model")
    write_gguf(model, tmp_path / "model.gguf", "llama", metadata=metadata)
    found = load_chat_templates(tmp_path / "model.gguf")
    assert found.sources == {"default": "{% for each in messages %}{{ each.content }}{% endfor %}"}
    assert found.special_tokens["eos_token"] == "<|endoftext|>"


@pytest_asyncio.fixture
async def make() -> AsyncIterator:
    made: list[ChatTemplate] = []

    def template(source: str, **settings) -> ChatTemplate:
        sources = {"default": source} if source else {}
        made.append(ChatTemplate(ChatTemplates(sources, SPECIAL_TOKENS), 10**6, **settings))
        return made[-1]

    yield template
    for each in made:
        await each.close()


async def test_the_process_renders_as_the_function_does(make) -> None:
    template = make(EACH["llama"])
    messages, _, _ = CONVERSATIONS["turns"]
    text = await template.render(ChatInput(parse_messages(messages), SamplingParams(), now=NOW))
    assert text == template_render.render(
        EACH["llama"], SPECIAL_TOKENS, conversation(messages), 10**6
    )
    many = [
        template.render(ChatInput([ChatMessage("user", str(n))], SamplingParams()))
        for n in range(9)
    ]
    for number, each in enumerate(await asyncio.gather(*many)):
        assert f"\n\n{number}<|eot_id|>" in each


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "0.3 s"),
        ("{{ ('x' * 10**11) | length }}", "512 MiB of memory"),
        (
            "{% for a in range(99999) %}{{ 'x' * 99 }}{% endfor %}",
            "at most 1000000 bytes as the prompt",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set n = namespace(a=1) %}{% set n.__class__ = 1 %}", "no name for a template"),
        ("{{ raise_exception('no such role') }}", "got no such role"),
        ("{% if %}", "Expected an expression"),
        ("", "has no chat template"),
    ],
)
async def test_a_template_harms_nothing_but_its_request(make, source, reason) -> None:
    """What never ends is ended; the next conversation is rendered."""
    template = make(source, max_cpu_s=0.3 if reason == "0.3 s" else 60)
    for _ in range(3):  # more than there are processes
        with pytest.raises(InvalidRequestError, match=reason):
            await template.render(ChatInput(HI, SamplingParams()))


async def test_a_client_that_goes_away_leaves_its_answer_to_nobody(make) -> None:
    template = make("{{ messages[0].content }}")
    for number in range(8):
        left = asyncio.create_task(template.render(ChatInput(HI, SamplingParams())))
        await asyncio.sleep(0)
        left.cancel()
        own = ChatInput([ChatMessage("user", str(number))], SamplingParams())
        assert await template.render(own) == str(number)


async def test_a_file_that_is_no_template_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("{% for %}")
    with pytest.raises(ConfigError, match="must be a Jinja template, got line 1"):
        await ChatTemplate.load(str(embedded_model()), tmp_path / "wrong", 10**6)
    assert (await ChatTemplate.load(str(embedded_model()), None, 10**6)).exists
