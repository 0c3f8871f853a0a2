"""The start of a Ray node, for which Ray itself allows 30 s, too few for a slow machine.

Ray has neither an option for that limit nor a class for the error. A further attempt finds Ray's
files in memory and is faster.
"""

MAX_ATTEMPTS = 3

_WORDS = "current node timed out during startup"


def is_too_slow(error: BaseException) -> bool:
    """Whether `error` is that of Ray for a node that took too long to start."""
    return _WORDS in str(error)
