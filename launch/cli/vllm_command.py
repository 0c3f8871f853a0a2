"""A command that takes vLLM's options beside its own."""

from typing import Any

import typer

from launch.cli.help import QuireCommand
from launch.vllm.arguments import split
from launch.vllm.keywords import TRANSLATED, translate
from quire.contract.errors import ConfigError

# Names of before vLLM's came first.
_RENAMED = {"http-port": "port"}


class VllmCommand(QuireCommand):
    """`quire serve`: its arguments may be those of `vllm serve`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, vLLM's as those of this command that mean the same."""
        try:
            values, left = split(args, [*TRANSLATED, *_RENAMED, "model"])
            model = values.pop("model", None)
            for old, new in _RENAMED.items():
                if old in values:
                    values[new] = values.pop(old)
                    typer.echo(f"note: --{old} is --{new} now", err=True)
            keywords, idle = translate(values)
        except ConfigError as error:
            typer.echo(f"error: {error.message}", err=True)
            raise typer.Exit(2) from None
        if idle:
            names = ", ".join(f"--{name}" for name in sorted(idle))
            typer.echo(f"note: without effect here: {names}", err=True)
        words = [word for name, value in keywords.items() for word in _spelled(name, value)]
        rest = super().parse_args(ctx, [*words, *left])
        if model and not ctx.params.get("model"):
            ctx.params["model"] = model
        return rest

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser that takes the --no- form of every switch, as vLLM's does."""
        parser: Any = super().make_parser(ctx)
        for each in self.params:
            if getattr(each, "is_flag", False) and not each.secondary_opts:
                off = [f"--no-{flag[2:]}" for flag in each.opts if flag.startswith("--")]
                parser.add_option(each, off, each.name, action="store_const", const=False)
        return parser


def _spelled(name: str, value: Any) -> list[str]:
    """Return an option with its value, or values, as arguments."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    values = value if isinstance(value, (list, tuple)) else [value]
    return [f"--{option}={each}" for each in values]
