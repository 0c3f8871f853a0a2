"""How many blocks of a kernel a multiprocessor runs at once.

From the tables of the CUDA C++ Programming Guide (Compute Capabilities): registers are given to a
warp 256 at a time, and warps are shared out among four schedulers; a block takes 1 KB of shared
memory beside its own.
"""

from dataclasses import dataclass

_REGISTERS = 64 << 10
_REGISTERS_OF_ALLOCATION = 256
_SCHEDULERS = 4
_WARP = 32


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What a multiprocessor has for blocks."""

    shared_kb: int
    threads: int
    blocks: int

    @property
    def shared_bytes_of_block(self) -> int:
        """The most that a block may ask for."""
        return self.shared_kb - 1 << 10

    def blocks_of(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks of so many threads it runs at once; 0 if none fits."""
        if shared_bytes > self.shared_bytes_of_block:
            return 0
        warps = -(-threads // _WARP)
        of_warp = -(-registers * _WARP // _REGISTERS_OF_ALLOCATION) * _REGISTERS_OF_ALLOCATION
        by_registers = _REGISTERS // _SCHEDULERS // of_warp * _SCHEDULERS // warps
        by_memory = (self.shared_kb << 10) // (shared_bytes + (1 << 10))
        return min(by_registers, by_memory, self.threads // threads, self.blocks)


MULTIPROCESSORS = {
    80: Multiprocessor(164, 2048, 32),
    86: Multiprocessor(100, 1536, 16),
    89: Multiprocessor(100, 1536, 24),
    90: Multiprocessor(228, 2048, 32),
    100: Multiprocessor(228, 2048, 32),
    120: Multiprocessor(100, 1536, 24),
}
