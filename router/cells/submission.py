"""Why a request is handed to a cell."""

from enum import StrEnum


class SubmissionReason(StrEnum):
    """Why a request is handed to a cell."""

    NEW = "new"
    # Its stream broke, and its client has resumed it here.
    RESUMED = "resumed"
    # The cell that was tried before had no room for it.
    QUEUE_FULL = "queue_full"
    # The cell that had it was lost or drained, lost its workers, or had no room to go on with it.
    MOVED = "moved"
    # It was paused, and its client has read what there was.
    READ_ON = "read_on"
