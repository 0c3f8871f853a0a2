"""What a cell reports to routers about its prefix cache: which blocks can be found in it."""

from quire.contract.block_hashes import is_reported_depth, short_hash
from quire.contract.sessions import PrefixDigestDelta

# Each takes some hundred bytes of every router's memory. Blocks beyond these are not reported.
MAX_REPORTED_BLOCKS = 16_384


class PrefixDigest:
    """Short hashes of the published blocks at reported depths, and how they change.

    Attributes:
        keys: all of them; only to be read.
    """

    def __init__(self) -> None:
        self.keys: set[int] = set()
        # Since the last delta was taken.
        self._added: set[int] = set()
        self._removed: set[int] = set()

    def add(self, content_hash: bytes, depth: int) -> None:
        """Add a block, which can be found now.

        Args:
            content_hash: of its contents and all before them.
            depth: its place in the prompt, 1 for the first block.
        """
        if not is_reported_depth(depth) or len(self.keys) >= MAX_REPORTED_BLOCKS:
            return
        key = short_hash(content_hash)
        if key in self.keys:
            return
        self.keys.add(key)
        if key in self._removed:
            self._removed.remove(key)
        else:
            self._added.add(key)

    def remove(self, content_hash: bytes) -> None:
        """Remove a block, which cannot be found any more; no effect if it was not reported."""
        key = short_hash(content_hash)
        if key not in self.keys:
            return
        self.keys.remove(key)
        if key in self._added:
            self._added.remove(key)
        else:
            self._removed.add(key)

    def clear(self) -> None:
        """Remove all blocks."""
        self._removed |= self.keys - self._added
        self._added.clear()
        self.keys.clear()

    def take_delta(self) -> PrefixDigestDelta:
        """Return what has changed since the last call."""
        delta = PrefixDigestDelta(tuple(self._added), tuple(self._removed))
        self._added.clear()
        self._removed.clear()
        return delta
