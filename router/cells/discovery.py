"""Finding cells by DNS: a name resolves to the addresses of the schedulers that there are now."""

import asyncio
import socket
from collections.abc import Callable, Iterable

from quire.contract.addresses import join_address, split_address
from quire.observe.log import get_logger

log = get_logger()


async def resolve(name: str) -> frozenset[str]:
    """Return the addresses of a name, each as "host:port".

    Args:
        name: "host:port" with a host name.

    Raises:
        OSError: it cannot be resolved now.
    """
    host, port = split_address(name)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    return frozenset(join_address(str(address[0]), port) for _, _, _, _, address in found)


async def follow_names(
    names: Iterable[str], interval_s: float, on_addresses: Callable[[frozenset[str]], None]
) -> None:
    """Resolve names again and again, until cancelled.

    A name that cannot be resolved keeps the addresses it had: cells do not go because a name server
    does.

    Args:
        names: each "host:port".
        interval_s: from one time to the next.
        on_addresses: called with the addresses of all names, every time.
    """
    known: dict[str, frozenset[str]] = {name: frozenset() for name in names}
    failing: set[str] = set()
    while True:
        for name in known:
            try:
                known[name] = await resolve(name)
                failing.discard(name)
            except OSError as error:
                if name not in failing:
                    log.warning("name_not_resolved", name=name, error=str(error))
                failing.add(name)
        on_addresses(frozenset[str]().union(*known.values()))
        await asyncio.sleep(interval_s)
