"""Structured logs: constant snake_case events with key=value fields, a line each, JSON or text.

Prompt text and generated text are never logged.
"""

import logging
import sys
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


def configure(service: str, level: str = "info", form: str = "auto") -> None:
    """Send logs of this process to stderr.

    Args:
        service: name bound to every line, e.g. "router".
        level: least severe level that is written, one of LOG_LEVELS of quire.contract.
        form: "json" or "text"; "auto" is text where stderr is a terminal.

    Raises:
        KeyError: it is no level.
    """
    import structlog

    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    renderer = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if is_text
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)


class _LogHandler(logging.Handler):
    """Writes what libraries log as lines of our log; of exceptions not the message."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        error = record.exc_info[1] if record.exc_info else None
        fields = {"message": record.getMessage()} if error is None else failure_of(error)
        get_logger().log(record.levelno, "library_reports", logger=record.name, **fields)


def log_uncaught() -> None:
    """Write what nothing else catches as lines of the log: exceptions, and what libraries log.

    An exception that ends this process is one line of level critical; its exit status is 1.
    """
    logging.basicConfig(handlers=[_LogHandler()], level=logging.WARNING, force=True)
    sys.excepthook = lambda _kind, error, _traceback: get_logger().critical(
        "service_failed", **failure_of(error)
    )


def get_logger() -> "FilteringBoundLogger":
    """Return the process's logger; request_id, step_id and rank are bound by context.

    Where structlog is not installed, as beside the SDK alone, lines go to `logging`.
    """
    try:
        import structlog
    except ModuleNotFoundError:
        return cast("FilteringBoundLogger", _LibraryLogger())
    return cast("FilteringBoundLogger", structlog.get_logger())


class _LibraryLogger:
    """Sends lines to the `logging` of the program that Quire is a library of."""

    def __getattr__(self, level: str) -> Any:
        return partial(self._write, getattr(logging.getLogger("quire"), level))

    @staticmethod
    def _write(write: Any, event: str, **fields: Any) -> None:
        write("%s", " ".join((event, *(f"{key}={value}" for key, value in fields.items()))))


def failure_of(error: BaseException) -> dict[str, str]:
    """Return fields that show where an exception came from, without its message.

    For code that handles texts of clients: other people's libraries put what they were given into
    the messages of their exceptions.
    """
    frames = traceback.format_tb(error.__traceback__)
    return {"error_type": type(error).__qualname__, "traceback": "".join(frames).rstrip()}
