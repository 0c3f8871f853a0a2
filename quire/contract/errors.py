"""The one tree of errors that may cross a service boundary.

Each class knows its gRPC status code by name; `quire.wire.errors` turns it into a status (and
rich details) and back. Messages are written for the person who sent the request: they name field,
limit and value, and never hold prompt text.
"""

from typing import Self


class QuireError(Exception):
    """Base of all expected errors.

    Attributes:
        code: gRPC status code name.
        reason: machine-readable cause, UPPER_SNAKE_CASE, sent as google.rpc.ErrorInfo.
    """

    code: str = "INTERNAL"
    reason: str = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequestError(QuireError):
    """A request field is out of bounds; retrying the same request cannot help."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.description = message

    def renamed(self, field: str) -> Self:
        """Return the same error of a field that its caller knows by another name."""
        return type(self)(field, self.description)


class TooLargeError(InvalidRequestError):
    """A request may become larger than a cell can hold; a larger cell may take it."""

    reason = "TOO_LARGE"


class ContextLengthError(InvalidRequestError):
    """A prompt is longer than the model takes. Agents shorten it when they read this.

    Attributes:
        num_tokens: of the prompt; 0 where only the message is known.
        limit: the most that it may have; likewise.
    """

    reason = "CONTEXT_LENGTH_EXCEEDED"

    def __init__(self, field: str, message: str, num_tokens: int = 0, limit: int = 0) -> None:
        super().__init__(field, message)
        self.num_tokens = num_tokens
        self.limit = limit

    def renamed(self, field: str) -> Self:
        """See `InvalidRequestError`."""
        return type(self)(field, self.description, self.num_tokens, self.limit)


class ModelNotFoundError(QuireError):
    """The named model is not served here."""

    code = "NOT_FOUND"
    reason = "MODEL_NOT_FOUND"


class RequestExistsError(QuireError):
    """A running request has this id already."""

    code = "ALREADY_EXISTS"
    reason = "REQUEST_EXISTS"


class OverloadedError(QuireError):
    """A bounded queue is full; the request may be sent again later."""

    code = "RESOURCE_EXHAUSTED"
    reason = "QUEUE_FULL"

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class UnreachableDeadlineError(OverloadedError):
    """What waits before a request takes longer than its caller does."""

    reason = "DEADLINE_UNREACHABLE"


class QuotaExceededError(OverloadedError):
    """The API key of a request has had what it may have for now."""

    reason = "QUOTA_EXCEEDED"


class UnavailableError(QuireError):
    """A service this request needs is not reachable now."""

    code = "UNAVAILABLE"
    reason = "UNAVAILABLE"


class NoCellError(UnavailableError):
    """A router has waited for a cell as long as it waits."""

    reason = "NO_CELL"


class NumericsLostError(UnavailableError):
    """A stream cannot continue: no cell is left that computes the same tokens."""

    reason = "NUMERICS_LOST"


class NumericsDifferError(QuireError):
    """A request cannot be resumed here: no cell computes the same tokens."""

    code = "FAILED_PRECONDITION"
    reason = "NUMERICS_DIFFER"


class TextDiffersError(QuireError):
    """A request cannot be resumed here: the tokenizer is another."""

    code = "FAILED_PRECONDITION"
    reason = "TEXT_DIFFERS"


class SupersededError(QuireError):
    """The request was resumed by another stream."""

    code = "ABORTED"
    reason = "SUPERSEDED"


class ReaderStalledError(QuireError):
    """The client of a stream has read nothing for too long; it may resume the request."""

    code = "ABORTED"
    reason = "READER_STALLED"


class DrainingError(QuireError):
    """A cell takes no new requests; another one may."""

    code = "UNAVAILABLE"
    reason = "DRAINING"


class DeadlineExceededError(QuireError):
    """The time that the caller gave has passed."""

    code = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class AbortedError(QuireError):
    """The request was ended by an Abort."""

    code = "ABORTED"
    reason = "ABORTED"


NOT_FINITE = (
    "the answer ended early: for its next token the model gave numbers that are not finite; its "
    "weights are broken, or dtype or quantization too narrow for them; or its structured outputs "
    "reached a limit of their grammar, which the worker has logged"
)
"""Why an answer has the finish reason ERROR: there is no third cause."""

NO_TOKEN = (
    "the answer ended early: what the request forbids left no token that could come next; look at "
    "allowed_token_ids, bad_words, min_tokens and structured outputs together"
)
"""Why an answer has the finish reason NO_TOKEN."""


class NotFiniteError(QuireError):
    """A model's numbers for a request overflow, or are none."""

    reason = "NOT_FINITE"

    def __init__(self, message: str = NOT_FINITE) -> None:
        super().__init__(message)


class NoTokenError(QuireError):
    """A request forbids every token that could come next; the same one fails again."""

    code = "INVALID_ARGUMENT"
    reason = "NO_TOKEN"

    def __init__(self, message: str = NO_TOKEN) -> None:
        super().__init__(message)


class QuarantinedError(QuireError):
    """Workers were lost at a request, and again, or failed, when they computed it alone."""

    reason = "QUARANTINED"


class UnauthenticatedError(QuireError):
    """A call brings no valid API key."""

    code = "UNAUTHENTICATED"
    reason = "API_KEY_INVALID"


class PermissionDeniedError(QuireError):
    """The peer is known, and may not do this."""

    code = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class StaleEpochError(QuireError):
    """A scheduler of an older epoch spoke to a worker."""

    code = "FAILED_PRECONDITION"
    reason = "STALE_EPOCH"


class RankTakenError(QuireError):
    """A worker claims a rank that another one holds."""

    code = "FAILED_PRECONDITION"
    reason = "RANK_TAKEN"


class ProtocolDiffersError(QuireError):
    """A peer is of a release too old or too new for this one; an upgrade of either may cure it."""

    code = "FAILED_PRECONDITION"
    reason = "PROTOCOL_DIFFERS"


class ModelLoadError(QuireError):
    """A model directory cannot be served: missing shard, wrong shape, unsupported architecture."""

    code = "FAILED_PRECONDITION"
    reason = "MODEL_UNUSABLE"


class ConfigError(QuireError):
    """A setting is out of bounds or contradicts another or the machine."""

    code = "FAILED_PRECONDITION"
    reason = "BAD_CONFIG"
