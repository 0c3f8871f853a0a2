"""Which work of a stream comes after which of another: races between streams, by vector clocks.

A piece of work that touches memory must come after all that another stream did there, by an event
or a wait; on a GPU nothing else keeps them apart. Every touch counts as a write.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

# Of each stream, by its number, how much of its work has come before.
Clock = Counter[int]


class StreamOrder:
    """Clocks of the streams, and who touched memory last.

    Attributes:
        waited: what the host has waited for, and with it whatever it starts from then on.
    """

    def __init__(self) -> None:
        self.waited: Clock = Counter()
        self._clocks: dict[int, Clock] = defaultdict(Counter)
        # By address: the last work of each stream there.
        self._touched: dict[int, Clock] = defaultdict(Counter)

    def start(self, stream: int, what: str, addresses: Iterable[int]) -> None:
        """Count a piece of work.

        Args:
            stream: its stream.
            what: its name.
            addresses: of the tensors that it reads or writes.

        Raises:
            RuntimeError: another stream may still work there.
        """
        clock = self._clocks[stream]
        clock |= self.waited
        clock[stream] += 1
        for address in addresses:
            touched = self._touched[address]
            for other, time in touched.items():
                if other != stream and clock[other] < time:
                    raise RuntimeError(
                        f"{what}: must wait for stream {other}, which works on the same memory, "
                        f"got stream {stream}, which has not"
                    )
            touched[stream] = clock[stream]

    def moment(self, stream: int) -> Clock:
        """Return what comes before an event recorded now."""
        return Counter(self._clocks[stream])

    def wait(self, stream: int, moment: Clock) -> None:
        """Let what a stream is given from now on come after a moment."""
        self._clocks[stream] |= moment
