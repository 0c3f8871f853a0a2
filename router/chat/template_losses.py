"""What a chat template leaves out of a conversation: refused, since a client would not notice."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.contract.errors import InvalidRequestError

# Every template takes their words; of an assistant's, some leave out what it thought earlier.
_TAKEN = ("user", "assistant")
# A shorter text may stand in the prompt by chance.
_MIN_TELLING_CHARS = 24
_MARK = "quire{}words"
_MAX_ROLE_CHARS = 32


def check_losses(
    source: str,
    text: str,
    messages: Sequence[Mapping[str, Any]],
    render: Callable[[Sequence[Mapping[str, Any]]], str],
) -> None:
    """Check that the words of all messages are in the prompt.

    A template that asks for no role is left alone: it writes what its author wants of any. So is
    one that leaves out tool calls, as it does the tools: a call may be forced all the same, and
    what it returned is in the prompt.

    Args:
        source: of the template.
        text: the prompt.
        messages: that it was made of, as the template reads them.
        render: makes the prompt of other messages.

    Raises:
        InvalidRequestError: no branch of the template takes a message's role where it stands.
    """
    if "role" not in source:
        return
    doubtful = {
        number: _MARK.format(number)
        for number, message in enumerate(messages)
        if message["role"] not in _TAKEN and not _is_in(message["content"].strip(), text)
    }
    if not doubtful:
        return
    marked = [
        {**message, "content": doubtful.get(number, message["content"])}
        for number, message in enumerate(messages)
    ]
    if messages[-1]["role"] == "assistant":
        # Some templates write what the system says before the user's turn that is answered.
        marked.append({"role": "user", "content": _MARK.format(len(marked))})
    try:
        found = render(marked).lower()
    except InvalidRequestError:
        return  # it looks into the words, so it takes them
    for number, mark in doubtful.items():
        if mark not in found:
            role = messages[number]["role"][:_MAX_ROLE_CHARS]
            description = "must be what the chat template takes, got the role "
            raise InvalidRequestError("messages", f"{description}{role}, whose words it leaves out")


def _is_in(content: str, text: str) -> bool:
    return not content or (len(content) >= _MIN_TELLING_CHARS and content in text)
