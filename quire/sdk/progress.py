"""The progress bar of the offline API."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    total: int, show: bool, title: str = "Processed prompts"
) -> Iterator[Callable[[int], None]]:
    """Yield what is called with the number of output tokens whenever a prompt is done.

    Args:
        total: prompts.
        show: False shows nothing.
        title: what stands before the bar.
    """
    if not show:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]:,.0f} output tokens/s"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total, speed=0.0)
        began, num_tokens = time.monotonic(), 0

        def advance(tokens: int) -> None:
            nonlocal num_tokens
            num_tokens += tokens
            speed = num_tokens / max(1e-9, time.monotonic() - began)
            progress.update(task, advance=1, speed=speed)

        yield advance
