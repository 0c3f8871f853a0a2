from dataclasses import fields

from quire import SamplingParams
from quire.contract.chat import ChatInput, ChatMessage
from quire.contract.inputs import GenerateInput


def test_a_chat_whose_prompt_is_known_is_a_generate_request() -> None:
    others = {
        "sampling_params": SamplingParams(max_tokens=3),
        "request_id": "r",
        "model": "m",
        "priority": -2,
        "cache_salt": "salt",
        "include_time_breakdown": True,
        "heartbeat_ms": 500,
        "resumable": True,
    }
    request = ChatInput([ChatMessage("user", "Hi")], **others).generate_input([1, 2])
    assert request == GenerateInput([1, 2], include_prompt_token_ids=True, **others)
    # The prompt, its token ids with Started, and pooling_params, which clients do not set.
    assert len(fields(GenerateInput)) == len(others) + 3
