"""Keywords of `LLM` that are options: signature and documentation come from the options."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from quire.contract.options import defaults_of, options_of

T = TypeVar("T", bound=type)


def documents_keywords(group: type, keywords: type) -> Callable[[T], T]:
    """Return a decorator that shows the options which a class's constructor takes as **options.

    Editors read them from the annotation of **options. `help` and the documentation read them here.

    Args:
        group: dataclass whose fields are options.
        keywords: TypedDict with the names of those that the constructor takes.
    """

    def decorate(decorated: T) -> T:
        constructor: Any = decorated.__init__  # type: ignore[misc]
        signature = inspect.signature(constructor)
        own = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
        types, defaults = inspect.get_annotations(keywords), defaults_of(group)
        shown = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=types[name]
            )
            for name in types
        ]
        constructor.__signature__ = signature.replace(parameters=[*own, *shown])
        # The class's own, too: Sphinx looks defaults of a constructor up in its source.
        decorated.__signature__ = signature.replace(parameters=[*own[1:], *shown])  # type: ignore[attr-defined]
        texts = {name: each.full_help for name, each in options_of(group).items() if name in types}
        lines = "\n".join(f"            {name}: {text}" for name, text in texts.items())
        if constructor.__doc__ is not None:  # as with -OO
            before, _, after = constructor.__doc__.partition("            **options:")
            constructor.__doc__ = f"{before}{lines}\n{after.partition(chr(10))[2]}"
        return decorated

    return decorate
