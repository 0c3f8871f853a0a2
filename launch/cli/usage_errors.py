"""What is wrong with a command line, in one line and the grammar of all errors."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from launch.cli.environment import report

# click's, or the copy of it that later releases of typer have within.
_exceptions: Any = sys.modules[typer.BadParameter.__module__]


class QuireGroup(TyperGroup):
    """The commands; a mistake on the command line is one line on stderr."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; with `standalone_mode`, end the process with its status."""
        extra["windows_expand_args"] = windows_expand_args
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        # The parent says so, or what is typed is to be completed.
        words = sys.argv if args is None else args
        is_silent = "--ready-fd" in words or "_QUIRE_COMPLETE" in os.environ
        report(self, is_child=is_silent)
        try:
            try:
                self._run(args, prog_name, complete_var, extra)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # here it may fail, and not when the process ends
        except OSError as error:
            if error.filename is not None or not _stdout_fails():
                raise
            if error.errno != errno.EPIPE:  # whoever read it has enough
                why = f"must take what is written, got {error.strerror}"
                typer.echo(f"error: stdout: {why}", err=True)
            sys.exit(1)

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        extra: dict[str, Any],
    ) -> NoReturn:
        """Run a command, and end the process with its status."""
        try:
            status = super().main(args, prog_name, complete_var, False, **extra)
        except _exceptions.NoArgsIsHelpError as error:
            typer.echo(error.ctx.get_help(), err=True)
            sys.exit(2)
        except _exceptions.UsageError as error:
            typer.echo(f"error: {one_line(error)}", err=True)
            sys.exit(2)
        except (typer.Abort, KeyboardInterrupt):
            _say_interrupted()
            sys.exit(130)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named; Ctrl-C is one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _say_interrupted()
            raise typer.Exit(130) from None


def _stdout_fails() -> bool:
    """Return whether nothing can be written to stdout; what is left for it is given up then."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.write("\n")  # what could not be written may be there no more
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        return True
    return False


def _say_interrupted() -> None:
    typer.echo("interrupted", err=True)


def one_line(error: Any) -> str:
    """Return what a person needs to mend a command line.

    Args:
        error: click's UsageError.
    """
    command = error.ctx.command_path if error.ctx is not None else "quire"
    if isinstance(error, _exceptions.NoSuchOption):
        meant = f": did you mean {' or '.join(error.possibilities)}?" if error.possibilities else ""
        return f"{error.option_name}: must be an option of `{command}`{meant}{_more(command)}"
    if isinstance(error, _exceptions.MissingParameter):
        what = _name(error.param) or "an argument"
        return f"{what}: must be given{_more(command)}"
    if isinstance(error, _exceptions.BadParameter):
        return f"{_name(error.param) or error.param_hint}: {_reason(error)}"
    if isinstance(error, _exceptions.BadOptionUsage):
        if "does not take" in error.message:
            return f"{error.option_name}: must have no value, as a switch has none, got one"
        return f"{error.option_name}: must have a value, got none"
    return f"{' '.join(error.format_message().split()).rstrip('.')}{_more(command)}"


def _more(command: str) -> str:
    return f" (`{command} --help` lists all)"


def _name(parameter: Any) -> str:
    if parameter is None:
        return ""
    is_option = parameter.param_type_name == "option"
    return str(parameter.name if is_option else parameter.metavar or parameter.name)


def _reason(error: Any) -> str:
    """Return what is wrong with a value of an option that is no field of a dataclass."""
    text = " ".join(error.message.split()).rstrip(".")
    number = next((word for word in ("integer", "number", "float") if f"valid {word}" in text), "")
    if number:
        return f"must be {'an integer' if number == 'integer' else 'a number'}"
    if "valid boolean" in text and error.ctx is not None and error.param is not None:
        # A switch has a value only where a variable gives it.
        variable = f"{error.ctx.auto_envvar_prefix}_{error.param.name.upper()}"
        source = f" (of {variable} in the environment)" if variable in os.environ else ""
        return f"must be true or false, got {os.environ.get(variable, text)!r}{source}"
    return text.removeprefix("Value error, ")
