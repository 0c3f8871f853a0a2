"""Why an answer did not come."""


class AskError(Exception):
    """A question was not answered; the message is the reason."""


class BrokenError(AskError):
    """The connection failed, or the stream ended before its answer did."""


class UnreadableError(AskError):
    """The server sent what OpenAI's API does not have."""


class TimedOutError(AskError):
    """The answer did not come in time."""


class RefusedError(AskError):
    """The server answered with an error.

    Attributes:
        status: of HTTP; 0 for an event in a stream.
        retry_after_s: when to come again; None where it does not say.
    """

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status or 'error event'}: {message}")
        self.status = status
        self.retry_after_s = retry_after_s
