"""A table of outputs in each format of tool calls and reasoning, and what they mean."""

import json

from quire.contract.chat import Tool
from router.chat.parsers.formats import OutputFormat

SCHEMA = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "any": {}}}
TOOLS = (Tool("weather", parameters=json.dumps(SCHEMA)), Tool("now"))
PARIS = '{"city": "Par\\"is", "at": [1, {"x": null}]}'

HERMES = OutputFormat("hermes")
LLAMA = OutputFormat("llama3_json")
MISTRAL = OutputFormat("mistral")
DEEPSEEK = OutputFormat("deepseek_v3")
GLM = OutputFormat("glm45")
CODER = OutputFormat("qwen3_coder")
HARMONY = OutputFormat("openai", "openai_gptoss")
R1 = OutputFormat("deepseek_v3", "deepseek_r1")
QWEN = OutputFormat("hermes", "qwen3")
MAGISTRAL = OutputFormat("mistral", "mistral")
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ARG = "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n"
CITY = ARG % ("city", 'Pa"ris\n')
WEATHER = ["weather", PARIS]


def json_calls(tool: str) -> dict[str, str]:
    """Return a call of a tool in each format whose arguments are JSON; %s is in their place."""
    return {
        "hermes": f'<tool_call>\n{{"name": "{tool}", "arguments": %s}}\n</tool_call>',
        "llama3_json": f'{{"name": "{tool}", "parameters": %s}}',
        "mistral": f"[TOOL_CALLS]{tool}[ARGS]%s",
        "deepseek_v3": BEGIN + V3.replace("%s", tool, 1) + END,
        "deepseek_v31": BEGIN + V31.replace("%s", tool, 1) + END,
        "openai": f"<|channel|>commentary to=functions.{tool} <|constrain|>json"
        "<|message|>%s<|call|>",
    }


# Format, end of the prompt, output; content, reasoning, calls.
CASES: list[tuple[OutputFormat, str, str, str, str, list[list[str]]]] = [
    (HERMES, "", "plain < text <tool", "plain < text <tool", "", []),
    (HERMES, "", f"I look.\n{CALL}", "I look.\n", "", [WEATHER]),
    (HERMES, "", f"{CALL}\n{CALL}\n", "", "", [WEATHER, WEATHER]),
    (HERMES, "", f"{CALL}\n and more", "\n and more", "", [WEATHER]),
    (HERMES, "", f'<tool_call>{{"arguments":{PARIS},"name":"now"}}</tool_call>', "", "",
     [["now", PARIS]]),
    (HERMES, "", '<tool_call>{"name": "now"}</tool_call>', "", "", [["now", "{}"]]),
    (HERMES, "", '<tool_call>{"name": "weather", "arguments": {"city": "Pa', "", "",
     [["weather", '{"city": "Pa']]),
    (HERMES, "", '<tool_call>{"name": "weather", "arguments": {"city" 1}}</tool_call> x',
     " x", "", [["weather", '{"city" 1}}']]),
    (HERMES, "", "<tool_call>no</tool_call>", "<tool_call>no</tool_call>", "", []),
    (HERMES, "", '<tool_call>{"name": "a b", "arguments": {}}',
     '<tool_call>{"name": "a b", "arguments": {}}', "", []),
    (HERMES, "", '<tool_call>{"name": "now", "arguments": "{}"}',
     '<tool_call>{"name": "now", "arguments": "{}"}', "", []),
    (HERMES, "", f"<tool_call>{CALL}", "<tool_call>", "", [WEATHER]),
    (HERMES, "", f'<tool_call>{{"name": "weather", "arguments": {PARIS}', "", "", [WEATHER]),
    (LLAMA, "", f'{{"name": "weather", "parameters": {PARIS}}}', "", "", [WEATHER]),
    (LLAMA, "", f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {PARIS}}}',
     "", "", [WEATHER]),
    (LLAMA, "", f'{{"name": "weather", "parameters": {PARIS}}}; {{"name": "now"}}', "", "",
     [WEATHER, ["now", "{}"]]),
    (LLAMA, "", '{"city": "Paris"}', '{"city": "Paris"}', "", []),
    (LLAMA, "", "<|python_tag|>print(1)", "<|python_tag|>print(1)", "", []),
    (LLAMA, "", 'see {"name": "now"}', 'see {"name": "now"}', "", []),
    (MISTRAL, "", f'[TOOL_CALLS][{{"name": "weather", "arguments": {PARIS}}}, '
     '{"name": "now", "arguments": {}}]', "", "", [WEATHER, ["now", "{}"]]),
    (MISTRAL, "", f"So: [TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]now[ARGS]{{}}", "So: ", "",
     [WEATHER, ["now", "{}"]]),
    (MISTRAL, "", f"[TOOL_CALLS]weather{PARIS}", "", "", [WEATHER]),
    (MISTRAL, "", f"[TOOL_CALLS]weather[CALL_ID]x12345678[ARGS]{PARIS}", "", "", [WEATHER]),
    (MISTRAL, "", "[TOOL_CALLS][1, 2]", "[TOOL_CALLS][1, 2]", "", []),
    (DEEPSEEK, "", f"Hm.{BEGIN}{V3 % ('weather', PARIS)}\n{V3 % ('now', '{}')}{END}", "Hm.", "",
     [WEATHER, ["now", "{}"]]),
    (DEEPSEEK, "", f"{BEGIN}{V31 % ('weather', PARIS)}{V31 % ('now', '{}')}{END}", "", "",
     [WEATHER, ["now", "{}"]]),
    (DEEPSEEK, "", f"{BEGIN}{END}", "", "", []),
    (DEEPSEEK, "", f"{BEGIN}what{END}", f"{BEGIN}what{END}", "", []),
    (GLM, "", f"<tool_call>weather\n{CITY}{ARG % ('days', '3')}</tool_call>",
     "", "", [["weather", '{"city": "Pa\\"ris\\n", "days": 3}']]),
    (GLM, "", f"<tool_call>weather\n{ARG % ('any', '[1, 2]')}{ARG % ('new', 'a b')}</tool_call>",
     "", "", [["weather", '{"any": [1, 2], "new": "a b"}']]),
    (GLM, "", "<tool_call>now</tool_call>", "", "", [["now", "{}"]]),
    (GLM, "", "<tool_call>not a name</tool_call>", "<tool_call>not a name</tool_call>", "", []),
    (CODER, "", "Yes\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "Yes\n", "",
     [["weather", '{"city": "Paris\\n", "days": 3}']]),
    (CODER, "", "<tool_call><function=now></function></tool_call>", "", "", [["now", "{}"]]),
    (CODER, "", "<tool_call>now</tool_call>", "<tool_call>now</tool_call>", "", []),
    (HARMONY, "", "<|channel|>analysis<|message|>Hm <b><|end|><|start|>assistant<|channel|>final"
     "<|message|>Hello<|return|>", "Hello", "Hm <b>", []),
    (HARMONY, "", "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary "
     f"to=functions.weather <|constrain|>json<|message|>{PARIS}<|call|>", "", "Hm", [WEATHER]),
    (HARMONY, "", " to=functions.weather<|channel|>commentary<|constrain|>json<|message|>"
     f"{PARIS}", "", "", [WEATHER]),
    (HARMONY, "", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
     f"<|channel|>commentary to=functions.weather<|message|>{PARIS}<|call|>", "I look.", "",
     [WEATHER]),
    (HARMONY, "", "no channel", "no channel", "", []),
    (R1, "", f"Hm\n</think>\n\nYes{BEGIN}{V3 % ('now', '{}')}{END}", "\n\nYes", "Hm\n",
     [["now", "{}"]]),
    (R1, "<think>\n", "never ends </thin", "", "never ends </thin", []),
    (R1, "</think>", "Yes", "Yes", "", []),
    (R1, "", "<think>Hm</think>Yes", "Yes", "Hm", []),
    (QWEN, "", "<think>\nHm\n</think>\n\nYes", "\n\nYes", "\nHm\n", []),
    (QWEN, "<think>\n", f"Hm</think>{CALL}", "", "Hm", [WEATHER]),
    (QWEN, "<think>\n\n</think>\n\n", f"Yes{CALL}", "Yes", "", [WEATHER]),
    (QWEN, "", "No <think>x</think>", "No <think>x</think>", "", []),
    (QWEN, "", " <thi", " <thi", "", []),
    (MAGISTRAL, "", "[THINK]Hm[/THINK]Yes[TOOL_CALLS]now[ARGS]{}", "Yes", "Hm", [["now", "{}"]]),
]  # fmt: skip
