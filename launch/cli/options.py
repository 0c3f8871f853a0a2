"""Options of commands, made from dataclasses whose fields are options (quire.contract.options)."""

import functools
import inspect
import os
from collections.abc import Callable, Collection
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, get_args, get_type_hints

import typer

from quire.contract.errors import ConfigError
from quire.contract.options import Option, defaults_of, options_of, panel_of, types_of

Values = dict[str, Any]
# What stands for a number in the help.
_NUMBERS: dict[Any, str] = {int: "INTEGER", float: "NUMBER"}

ReadyFd = Annotated[
    int | None,
    typer.Option(
        hidden=True,
        help="Pipe to the parent process, for how the start went; that sends options on stdin.",
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Hugging Face model directory, or a GGUF file. Without one, the embedded demo model.",
        show_default=False,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="QUIRE_API_KEY",
        metavar="KEY",
        help="Key to call with. Others on this machine may see it here; not in the environment.",
        show_default=False,
    ),
]

Routers = Annotated[
    str, typer.Option(metavar="HOST:PORT,...", help="Where the router listens, or several.")
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="QUIRE_INSECURE",
        help="Let the key go over a network in the clear.",
    ),
]
ServedModel = Annotated[str, typer.Option(help="Served model to use.", show_default="the only one")]
Priority = Annotated[int, typer.Option(help="Smaller goes first, -100 to 100.")]
CacheSalt = Annotated[str, typer.Option(help="Share cached prefixes within this salt only.")]
RouterName = Annotated[
    str | None,
    typer.Option(help="Name that the router's certificate must have.", show_default="quire-router"),
]


def takes_options(
    *groups: type, only: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator by which a command takes the options of dataclasses.

    The decorated function gets their values by name as its first argument, `options`.

    Args:
        groups: the dataclasses.
        only: names of the options to take; empty takes all but internal ones.
    """
    known = {
        name: (group, each)
        for group in groups
        for name, each in options_of(group).items()
        if (name in only if only else not each.internal)
    }
    made = [_parameter(group, name, each) for name, (group, each) in known.items()]

    def read(values: Values) -> Values:
        return {name: _plain(values[name], name, group) for name, (group, _) in known.items()}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        first, *own = inspect.signature(function).parameters.values()
        assert first.name == "options", "the values of the options come first"

        @functools.wraps(function)
        def command(**values: Any) -> None:
            try:
                options = read(values)
            except ConfigError as error:
                typer.echo(f"error: {error.message}", err=True)
                raise typer.Exit(2) from None
            function(options, **{name: values[name] for name in values if name not in known})

        # Arguments, such as a model directory, come before options in the help.
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*own, *made]]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        # For what reads command lines without running them.
        command.read_options = read  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(group: type, name: str, known: Option) -> inspect.Parameter:
    """Return an option as a parameter that typer reads."""
    annotation: Any = types_of(group)[name]
    default = defaults_of(group)[name]
    word = name.replace("_", "-")
    flags = known.flags or (f"--{word}",)
    metavar = known.metavar
    # Numbers and choices are read here, in `_plain`: an error is in the words of all others.
    if known.choices:
        metavar = metavar or "|".join(known.choices)
        annotation, default = str, None if default is None else str(default)
    elif annotation in _NUMBERS:
        metavar = metavar or _NUMBERS[annotation]
        annotation = str
    elif annotation is tuple:
        item, *_ = get_args(get_type_hints(group)[name])
        annotation, default = GenericAlias(list, (item,)), None
    elif annotation is bool:
        flags = (f"--{word}/--no-{word}" if default else f"--{word}",)
    info = typer.Option(
        *flags,
        help=known.full_help,
        envvar=known.envvar,
        metavar=metavar,
        show_default=known.shown_default or True,
        show_envvar=known.envvar is not None,
        rich_help_panel=panel_of(group, name),
    )
    if default is None:
        annotation = annotation | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, info],
    )


def _plain(value: Any, name: str, group: type) -> Any:
    """Return what typer read as the field of a dataclass holds it.

    Raises:
        ConfigError: it is no number, or none of the choices.
    """
    kind, known = types_of(group)[name], options_of(group)[name]
    if kind is tuple:
        return tuple(value or ())
    if kind in _NUMBERS and isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            what = "an integer" if kind is int else "a number"
            raise ConfigError(
                f"{name}: must be {what}, got {value}{_source(name, value)}"
            ) from None
    if known.choices and value is not None and value not in known.choices:
        choices = ", ".join(known.choices)
        raise ConfigError(f"{name}: must be one of {choices}, got {value}{_source(name, value)}")
    return value


def _source(name: str, value: str) -> str:
    """Return which variable of the environment a value may have come from."""
    end = f"_{name.upper()}"
    ours = (each for each in sorted(os.environ) if each.startswith("QUIRE_") and each.endswith(end))
    found = next((each for each in ours if os.environ[each] == value), None)
    return f" (of {found} in the environment)" if found else ""


def resolve_draft_model(options: Values) -> None:
    """Make the path of a draft model absolute: workers may run in other directories."""
    if options["draft_model"]:
        options["draft_model"] = str(Path(options["draft_model"]).resolve())


def model_path(model: str | None) -> Path:
    """Return the path of MODEL; that of the embedded model for none, or for "".

    Manifests give services "" where no model is set.
    """
    from launch.cluster.config import embedded_model

    return Path(model).resolve() if model else embedded_model()
