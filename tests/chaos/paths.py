"""Which path resumed streams: counters of services, kept beyond the deaths of their processes."""

import asyncio
import contextlib
import http.client
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_RESUMES = "quire_router_resumes_total"
_OFFERED = "quire_scheduler_kv_blocks_offered_total"
_ADOPTED = "quire_scheduler_kv_blocks_adopted_total"
# What a process counted since it was last asked dies with it.
_POLL_S = 0.25
# One that is frozen does not answer.
_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Page:
    """Where a process shows its counters.

    Attributes:
        pid: of the process; another one at the same address counts anew.
        address: of its admin port.
    """

    pid: int
    address: str


def counters_in(text: str) -> dict[str, float]:
    """Return the counters of a metrics page that tell how streams were resumed.

    Returns:
        By name, and of resumes by path.
    """
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == _RESUMES:
                found[sample.labels["path"]] = sample.value
            elif sample.name in (_OFFERED, _ADOPTED):
                found[sample.name] = sample.value
    return found


class ResumePaths:
    """Reads the counters of all processes now and then, and sums what each showed last.

    Args:
        pages: returns those of the processes that serve now.
    """

    def __init__(self, pages: Callable[[], Collection[Page]]) -> None:
        self._pages = pages
        self._last: dict[Page, Mapping[str, float]] = {}

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Read again and again while the block runs, and once more at its end."""
        following = asyncio.create_task(self._follow())
        try:
            yield
            await self.read()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(_POLL_S)

    async def read(self) -> None:
        """Read once what every process shows."""
        await asyncio.gather(*(self._read(each) for each in self._pages()))

    async def _read(self, page: Page) -> None:
        # It may be killed or frozen at any time.
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._last[page] = counters_in(await asyncio.to_thread(_get, page.address))

    @property
    def lines(self) -> list[str]:
        """What to print: a line for streams and one for blocks; none if nothing was shown."""
        if not self._last:
            return []

        def total(name: str) -> int:
            return round(sum(each.get(name, 0) for each in self._last.values()))

        paths = ("attached", "prefix_cached", "recomputed")
        return [
            f"resumed, as {len(self._last)} processes last showed: "
            + ", ".join(f"{total(path)} {path}" for path in paths),
            f"blocks adopted by new schedulers: {total(_ADOPTED)} of {total(_OFFERED)} offered",
        ]


def _get(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=_TIMEOUT_S) as page:
        return str(page.read().decode())
