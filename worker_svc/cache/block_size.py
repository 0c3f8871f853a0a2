"""The sizes of blocks that the kernels serve.

Apart from the cache, since they are asked for before torch is loaded.
"""

from quire.contract.errors import ConfigError

MIN_BLOCK_SIZE = 8
MAX_BLOCK_SIZE = 256


def check_block_size(block_size: int) -> None:
    """Check that the kernels serve blocks of this many tokens.

    Raises:
        ConfigError: they do not.
    """
    in_range = MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE
    if not in_range or block_size & (block_size - 1):
        raise ConfigError(
            f"block_size: must be a power of two in [{MIN_BLOCK_SIZE}, {MAX_BLOCK_SIZE}], "
            f"got {block_size}"
        )
