"""Quotas of tenants: requests per minute, tokens per minute, requests at once.

A quota holds for all cells of a model together, which know nothing of each other: each grants an
equal part, and a router tries another cell where one is used up. Rates are token buckets that hold
what comes in a minute: so much passes at once, and in t minutes at most t + 1 times the quota. A
bucket holds at least 1, and a cell has room for at least 1 request, however many cells share them;
else the room of a cell is rounded down.

Tokens are those that a tenant is charged for (see `tenants`). How many a request takes is known in
the end only: it is admitted while any are left, and what it takes beyond that is owed.
"""

from collections import Counter
from math import ceil

from quire.contract.errors import QuotaExceededError
from quire.contract.sessions import Submission
from scheduler_svc.policy.queues import Queues

MINUTE_S = 60.0
# Nothing says when the first of the requests that run will end.
RETRY_CONCURRENT_MS = 1000
MAX_RETRY_MS = 24 * 60 * 60 * 1000
# Tokens of requests that run are not counted more often than that.
SETTLE_S = 0.25
# Tenants of whom something is kept though they have used up nothing.
MAX_IDLE = 1024
# Of sums of floating-point numbers.
TOLERANCE = 1e-6


class Bucket:
    """Fills at a steady rate, and may be overdrawn.

    Args:
        per_minute: what flows in; it begins full.
        now: in seconds.

    Attributes:
        capacity: what it holds when it is full.
        level: what it holds; less than 0 where more was taken.
    """

    __slots__ = ("_now", "_per_minute", "capacity", "level")

    def __init__(self, per_minute: float, now: float) -> None:
        self._per_minute = per_minute
        self._now = now
        self.capacity = max(1.0, per_minute)
        self.level = self.capacity

    def advance(self, now: float) -> None:
        """Let in what has come by now; times never decrease."""
        came = (now - self._now) / MINUTE_S * self._per_minute
        self.level = min(self.capacity, self.level + came)
        self._now = now

    def set_rate(self, per_minute: float) -> None:
        """Let it fill at another rate from now on; what it owes stays."""
        self._per_minute = per_minute
        self.capacity = max(1.0, per_minute)
        self.level = min(self.capacity, self.level)

    def ms_until(self, level: float) -> int:
        """Return in how many milliseconds it will hold as much, if nothing is taken."""
        ms = (level - self.level) * 1e3 * MINUTE_S / self._per_minute
        return min(MAX_RETRY_MS, max(1, ceil(ms)))


class _Buckets:
    """What a tenant has left of its rates here; None where it has no such quota."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None

    def is_idle(self, now: float) -> bool:
        for bucket in (self.requests, self.tokens):
            if bucket is not None:
                bucket.advance(now)
                if bucket.level < bucket.capacity:
                    return False
        return True


class QuotaKeeper:
    """Refuses the requests of tenants that have used up a quota.

    No clock: all times are of the same clock, in seconds, and never decrease.

    Args:
        queues: what waits and runs.

    Attributes:
        num_refused: requests refused so far, by tenant and quota.
    """

    def __init__(self, queues: Queues) -> None:
        self.num_refused: Counter[tuple[str, str]] = Counter()
        self._queues = queues
        self._of: dict[str, _Buckets] = {}
        self._settled = float("-inf")

    def check(self, submission: Submission, now: float) -> None:
        """Check that a tenant may have one more request; changes nothing of what it has left.

        What a scheduler has queued before is never refused. What a client resumes was queued too,
        but only the client says so: it may owe a minute's tokens, and take as much room again.

        Raises:
            QuotaExceededError: it may not; names quota, limit and value.
        """
        if not submission.quotas or submission.was_queued:
            return
        self.settle(now)
        quotas, buckets = submission.quotas, self._buckets(submission, now)
        self._count_tokens(submission.tenant, buckets, now)  # of what has ended meanwhile
        is_resumed = submission.outputs is not None
        tenant = self._queues.waiting.find_tenant(submission.tenant)
        if (bucket := buckets.requests) is not None and not is_resumed:
            self._check_bucket(submission, "requests_per_minute", bucket, 0.0)
        if (bucket := buckets.tokens) is not None:
            # Those that wait have not been charged for: else a burst would cost nothing.
            coming = float(tenant.waiting.num_prompt_tokens if tenant else 0)
            if is_resumed:
                coming -= bucket.capacity
            self._check_bucket(submission, "tokens_per_minute", bucket, coming)
        if quotas.max_concurrent is not None:
            room = max(1, quotas.max_concurrent // submission.num_cells)
            number = tenant.num_groups + 1 if tenant else 1
            if number > room * (2 if is_resumed else 1):
                raise self._refusal(submission, "concurrent", room, number, RETRY_CONCURRENT_MS)

    def admitted(self, submission: Submission, now: float) -> None:
        """Count a request that was queued."""
        if submission.quotas:
            requests = self._buckets(submission, now).requests
            if requests is not None and not (submission.was_queued or submission.outputs):
                requests.level -= 1

    def settle(self, now: float) -> None:
        """Count what tenants were charged, of running requests too, unless it was just done."""
        if not self._of or now - self._settled < SETTLE_S:
            return
        self._settled = now
        self._queues.waiting.charge_running(self._queues.running)
        for name, buckets in self._of.items():
            self._count_tokens(name, buckets, now)

    def _count_tokens(self, name: str, buckets: _Buckets, now: float) -> None:
        tenant = self._queues.waiting.find_tenant(name)
        if tenant is not None and tenant.num_uncounted_tokens:
            if buckets.tokens is not None:
                buckets.tokens.advance(now)
                buckets.tokens.level -= tenant.num_uncounted_tokens
            tenant.num_uncounted_tokens = 0

    def _buckets(self, submission: Submission, now: float) -> _Buckets:
        """Return the buckets of a tenant, at the rates of its newest request."""
        name, quotas, num_cells = submission.tenant, submission.quotas, submission.num_cells
        buckets = self._of.get(name)
        if buckets is None:
            if len(self._of) >= MAX_IDLE:
                self._of = {key: each for key, each in self._of.items() if not each.is_idle(now)}
            buckets = self._of[name] = _Buckets()
            if tenant := self._queues.waiting.find_tenant(name):
                tenant.num_uncounted_tokens = 0  # from before it had quotas
        buckets.requests = _at_rate(
            buckets.requests, quotas.max_requests_per_minute, num_cells, now
        )
        buckets.tokens = _at_rate(buckets.tokens, quotas.max_tokens_per_minute, num_cells, now)
        return buckets

    def _check_bucket(
        self, submission: Submission, quota: str, bucket: Bucket, coming: float
    ) -> None:
        if bucket.level - coming < 1 - TOLERANCE:
            number = ceil(bucket.capacity - bucket.level + coming + 1 - TOLERANCE)
            retry_ms = bucket.ms_until(coming + 1)
            raise self._refusal(submission, quota, int(bucket.capacity), number, retry_ms)

    def _refusal(
        self, submission: Submission, quota: str, part: int, number: int, retry_after_ms: int
    ) -> QuotaExceededError:
        self.num_refused[submission.tenant, quota] += 1
        limit = getattr(submission.quotas, f"max_{quota}")
        shared = f" ({part} at each of {submission.num_cells} cells)"
        return QuotaExceededError(
            f"{quota.replace('_', ' ')}: must be at most {limit}"
            f"{shared if submission.num_cells > 1 else ''}, got {number}",
            retry_after_ms,
        )


def _at_rate(bucket: Bucket | None, quota: int | None, num_cells: int, now: float) -> Bucket | None:
    if quota is None:
        return None
    if bucket is None:
        return Bucket(quota / num_cells, now)
    bucket.advance(now)
    bucket.set_rate(quota / num_cells)
    return bucket
