"""Help that is read on a terminal of 80 columns: options in groups, no name cut."""

from typing import Any

from typer.core import TyperCommand

MAX_NAME_COLUMNS = 28
"""Of an option with its value; the help of a longer one begins in the next line."""


class QuireCommand(TyperCommand):
    """A command whose options are shown by group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options, those of a group together."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                other = "Arguments" if is_argument else "Options"
                name = getattr(parameter, "rich_help_panel", None) or other
                groups.setdefault(name, []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=MAX_NAME_COLUMNS)
