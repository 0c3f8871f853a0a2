"""API keys: a router serves callers that present a valid one."""

import asyncio
import hmac
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from quire.contract.callers import MAX_KEY_LENGTH, Caller
from quire.contract.errors import ConfigError
from quire.observe.log import get_logger
from quire.security.api_key_file import ApiKey, digest, parse_keys, read_content

PREFIX = "quire-"
RELOAD_INTERVAL_S = 0.5

log = get_logger()


def generate_key() -> str:
    """Return a new key: a prefix that scanners for leaked secrets can look for, and 256 bits."""
    return PREFIX + secrets.token_urlsafe(32)


def utc_now() -> datetime:
    """Return the time with its zone."""
    return datetime.now(UTC)


class ApiKeys:
    """The keys of a file, read again when it changes, and others that stay."""

    def __init__(
        self,
        path: Path | None,
        given: Sequence[str] = (),
        clock: Callable[[], datetime] = utc_now,
    ):
        """Read the file.

        Args:
            path: see `quire.security.api_key_file`; None for no file.
            given: keys themselves, whose callers are api-key, api-key-2 and so on.
            clock: returns the time, with its zone.

        Raises:
            ConfigError: it cannot be read or is malformed. Of later changes this is only logged.
        """
        self._path = path
        self._clock = clock
        self._given = tuple(
            ApiKey(f"api-key-{number}" if number > 1 else "api-key", digest(key), clock())
            for number, key in enumerate(dict.fromkeys(given), 1)
        )
        self._content = b"" if path is None else read_content(path)
        self._keys = () if path is None else parse_keys(self._content, path)
        self._last_error = ""
        if not (self._keys or given):
            log.warning("no_api_keys", path=str(path), consequence="every call is refused")

    def find(self, key: str) -> Caller | None:
        """Return who presents a key, if it is valid now; None for any other.

        All entries are compared, each in a time that does not depend on what is in it: how long it
        takes reveals nothing about the keys.
        """
        if len(key) > MAX_KEY_LENGTH:
            return None
        presented = digest(key)
        now = self._clock()
        found = None
        for entry in (*self._keys, *self._given):
            if hmac.compare_digest(entry.sha256, presented) and not entry.is_expired(now):
                found = entry.caller
        return found

    def reload(self) -> None:
        """Read the file again; if that fails, log it once and keep the keys that there are."""
        if self._path is None:
            return
        try:
            content = read_content(self._path)
            keys = self._keys if content == self._content else parse_keys(content, self._path)
        except ConfigError as error:
            if error.message != self._last_error:
                log.error("api_keys_unreadable", error=error.message, num_kept=len(self._keys))
                self._last_error = error.message
            return
        self._last_error = ""
        if keys is not self._keys:
            self._content, self._keys = content, keys
            log.info("api_keys_changed", path=str(self._path), num_keys=len(keys))

    async def follow(self) -> None:
        """Reload twice a second until cancelled.

        Contents are compared, not times of change: two changes may come within one tick of a file
        system's clock, and Kubernetes swaps the directory under the name.
        """
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            await asyncio.to_thread(self.reload)
