"""Numbers of tokens, in OpenAI's shape."""


def token_usage(num_prompt: int, num_output: int) -> dict[str, int]:
    """Return the `usage` of a prompt's tokens and those of its outputs."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
    }
