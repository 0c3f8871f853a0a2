"""A command that takes vLLM's options beside its own."""

import os
import re
from functools import cached_property
from typing import Any

import typer

from launch.cli.help import QuireCommand
from launch.vllm.arguments import NAMES, split
from launch.vllm.keywords import TRANSLATED, translate
from launch.vllm.variables import read
from quire.contract.errors import ConfigError

# Names of before vLLM's came first.
_RENAMED = {"http-port": "port"}


class VllmCommand(QuireCommand):
    """A command such as `quire serve`: its arguments may be those of `vllm serve`."""

    @cached_property
    def variables(self) -> dict[str, str]:
        """Options of vLLM's, by the ends of the variables that they are read from, too."""
        return {name.replace("-", "_").upper(): name for name in (*NAMES, *TRANSLATED)}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, vLLM's as those of this command that mean the same."""
        try:
            words, model, notes = self._translated(ctx, args)
        except ConfigError as error:
            if ctx.resilient_parsing:  # a line that is being typed
                return super().parse_args(ctx, args)
            typer.echo(f"error: {error.message}", err=True)
            raise typer.Exit(2) from None
        for note in () if ctx.resilient_parsing else notes:
            typer.echo(f"note: {note}", err=True)
        rest = super().parse_args(ctx, words)
        if model is not None and ctx.params.get("model") is None:
            ctx.params["model"] = model
        return rest

    def _translated(self, ctx: Any, args: list[str]) -> tuple[list[str], str | None, list[str]]:
        """Return arguments of this command, the model if an option names it, and notes.

        Raises:
            ConfigError: one asks for something that Quire does not do.
        """
        own = {each.name: each for each in self.params}
        names = [*TRANSLATED, *(_RENAMED if "port" in own else ())]
        if "model" in own and own["model"].param_type_name == "argument":
            names.append("model")
        values, left = split(args, names)
        model = values.pop("model", None)
        notes = []
        for old, new in _RENAMED.items():
            if old in values:
                values[new] = values.pop(old)
                notes.append(f"--{old} is --{new} now")
        prefix = f"{ctx.auto_envvar_prefix}_"
        told = read(prefix, self.variables) if ctx.auto_envvar_prefix else {}
        try:
            keywords, idle = translate({**told, **values})
        except ConfigError as error:
            raise _with_variable(error, prefix, told.keys() - values.keys()) from None
        for name in {*told, *values}:
            field = name.replace("-", "_")
            if field in own and field not in keywords:
                # It asks for what is so without it; the variable would be read again.
                os.environ.pop(f"{prefix}{field.upper()}", None)
        if idle:
            listed = ", ".join(f"--{name}" for name in sorted(idle))
            notes.append(f"without effect here: {listed}")
        words = [word for name, value in keywords.items() for word in _spelled(name, value)]
        return [*words, *left], model, notes

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser that takes the --no- form of every switch, as vLLM's does."""
        parser: Any = super().make_parser(ctx)
        for each in self.params:
            if getattr(each, "is_flag", False) and not each.secondary_opts:
                off = [f"--no-{flag[2:]}" for flag in each.opts if flag.startswith("--")]
                parser.add_option(each, off, each.name, action="store_const", const=False)
        return parser


def _with_variable(error: ConfigError, prefix: str, names: set[str]) -> ConfigError:
    """Return an error that says which variable of the environment it is of, if it is of one."""
    found = re.match(r"[\w-]+", error.message)
    name = found[0].replace("_", "-") if found else ""
    if name not in names:
        return error
    variable = f"{prefix}{name.replace('-', '_').upper()}"
    return ConfigError(f"{error.message} (of {variable} in the environment)")


def _spelled(name: str, value: Any) -> list[str]:
    """Return an option with its value, or values, as arguments."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    values = value if isinstance(value, (list, tuple)) else [value]
    return [f"--{option}={each}" for each in values]
