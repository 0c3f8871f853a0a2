"""Numbers of tokens, in OpenAI's shape."""

from typing import Any


def token_usage(num_prompt: int, num_output: int, num_cached: int) -> dict[str, Any]:
    """Return the `usage` of a prompt's tokens and those of its outputs.

    Args:
        num_prompt: tokens of the prompt.
        num_output: of all outputs.
        num_cached: of the prompt's, those that the prefix cache had.
    """
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }
