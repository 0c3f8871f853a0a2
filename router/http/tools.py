"""Tools in OpenAI's shapes, as errors name them."""

from quire.contract.chat import MAX_TOOLS
from router.http.fields import Fields


def own_names_of_tools(body: Fields) -> dict[str, str]:
    """Return what a client calls the schemas of its tools, by the contract's names for them.

    A chat has them one level deeper, and a response may.
    """
    tools = body.value("tools")
    return {
        f"tools[{place}].parameters": f"tools[{place}].function.parameters"
        for place, tool in enumerate(tools[:MAX_TOOLS] if isinstance(tools, list) else ())
        if isinstance(tool, dict) and "function" in tool
    }
