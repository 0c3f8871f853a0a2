"""Which format a chat template means, and whether a prompt ends within reasoning."""

import pytest

from quire.contract.errors import ConfigError
from router.chat.parsers.formats import (
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    OutputFormat,
    choose_format,
)

LLAMA = "<|start_header_id|>{{ role }}<|end_header_id|>"

# Parts of the templates that models are published with.
TEMPLATES = {
    "{{ bos_token }}{{ messages[0].content }}": ("none", "none"),
    "<|im_start|>": ("none", "none"),
    "<|im_start|>...<tool_call></tool_call>": ("hermes", "none"),
    "<|im_start|>...</think>...<tool_call></tool_call>": ("hermes", "qwen3"),
    "<|im_start|>...<tool_call>\n<function=example>\n<parameter=x>": ("qwen3_coder", "none"),
    f"{LLAMA}<|python_tag|>": ("llama3_json", "none"),
    f'{LLAMA}{{"name": name, "parameters": values}}': ("llama3_json", "none"),
    LLAMA: ("none", "none"),
    "[AVAILABLE_TOOLS][INST][TOOL_CALLS]": ("mistral", "none"),
    "[SYSTEM_PROMPT][THINK][/THINK][TOOL_CALLS][ARGS]": ("mistral", "mistral"),
    "<｜Assistant｜></think><｜tool▁calls▁begin｜>function```json": ("deepseek_v3", "deepseek_r1"),
    "<｜Assistant｜><think></think><｜tool▁calls▁begin｜>": ("deepseek_v31", "deepseek_r1"),
    "[gMASK]<sop><think></think><tool_call><arg_key>": ("glm45", "glm45"),
    "<|start|><|channel|>analysis<|message|>": ("openai", "openai_gptoss"),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_auto(template: str) -> None:
    assert choose_format("auto", "auto", [template]) == OutputFormat(*TEMPLATES[template])


def test_a_name_counts_more_than_the_template() -> None:
    template = "<think></think><tool_call>"
    assert choose_format("mistral", "none", [template]) == OutputFormat("mistral", "none")
    assert choose_format("none", "deepseek_r1", []) == OutputFormat("none", "deepseek_r1")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="tool_call_parser: must be one of auto, none, hermes"):
        choose_format("what", "auto", [])
    with pytest.raises(ConfigError, match=r"reasoning_parser: must be one of .*, got what"):
        choose_format("auto", "what", [])


@pytest.mark.parametrize(
    ("name", "prompt_end", "is_open"),
    [
        ("qwen3", "<|im_start|>assistant\n", False),
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "<think>x</think>y<|im_end|><|im_start|>assistant\n", False),
        ("deepseek_r1", "<｜Assistant｜>", True),
        ("deepseek_r1", "<｜Assistant｜><think>\n", True),
        ("deepseek_r1", "<｜Assistant｜></think>", False),
        ("deepseek_r1", "</think>x<｜Assistant｜>", True),
        ("mistral", "[/INST]", False),
    ],
)
def test_prompts_that_open_reasoning(name: str, prompt_end: str, is_open: bool) -> None:
    tags = REASONING_PARSERS[name]
    assert tags is not None
    assert tags.is_open(prompt_end) is is_open


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
def test_without_tools_calls_are_text(name: str) -> None:
    assert OutputFormat(name).parser("request", 0) is None
