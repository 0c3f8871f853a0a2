"""What the scheduler of a cell asks of its workers before the first step, and what they answer."""

from dataclasses import dataclass, field

from quire.contract.engine_options import CacheOptions, EngineOptions, LoadOptions
from quire.contract.errors import InvalidRequestError, ModelLoadError
from quire.contract.outputs import ModelInfo
from quire.contract.steps import MirroredSequence
from quire.contract.versions import PROTOCOL

DEFAULT_DISTRIBUTED_TIMEOUT_S = EngineOptions.distributed_timeout_s
MEETING_SECRET_BYTES = 32
# Longer than any step, the first ones of a large model on slow cores among them.
LONGEST_STEP_S = 300.0


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What a worker is and holds.

    Attributes:
        version: of the software; ranks of a group must agree.
        device: "cpu", "cuda:0" ...
        isa: instruction set the kernels run on.
        model: None until one is loaded.
        num_blocks: 0 until the cache is allocated.
        weight_bytes: memory of this rank's slice of the weights.
        epoch: highest one seen; 0 for none yet.
        scheduler_name: of the scheduler that has an Execute stream open; "" for none.
        protocol_version: of the worker.
        gpu: kind of the GPU, e.g. "NVIDIA H200, 132 multiprocessors"; "" on a CPU. Ranks of a group
            must agree.
    """

    version: str
    device: str
    isa: str
    model: ModelInfo | None
    num_blocks: int
    weight_bytes: int
    epoch: int = 0
    scheduler_name: str = ""
    protocol_version: int = PROTOCOL
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Which slice of which model, and how.

    Attributes:
        model: path of a Hugging Face model directory, or of a GGUF file.
        options: how to load it.
        tensor_parallel_rank: of this worker.
        tensor_parallel_size: number of workers that share each layer.

    Raises:
        ModelLoadError: a value is out of bounds; names field, limit and value.
    """

    model: str
    options: LoadOptions = field(default_factory=LoadOptions)
    tensor_parallel_rank: int = 0
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.tensor_parallel_rank < self.tensor_parallel_size:
            raise ModelLoadError(
                f"tensor_parallel_rank: must be in [0, tensor_parallel_size), got "
                f"{self.tensor_parallel_rank} of {self.tensor_parallel_size}"
            )


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where, when and how long the ranks of a group meet.

    Attributes:
        address: "host:port" where rank 0 awaits the others; unused by a group of one.
        host: address of this worker, as the others reach it.
        epoch: ranks meet only those of the same one.
        timeout_s: how long to wait for the others, to meet and in every exchange.
        secret: by which ranks know each other, random, for this epoch alone; empty for a group of
            one.

    Raises:
        InvalidRequestError: the timeout is out of bounds, or there is an address and no secret.
    """

    address: str = ""
    host: str = "127.0.0.1"
    epoch: int = 0
    timeout_s: float = DEFAULT_DISTRIBUTED_TIMEOUT_S
    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= 3600:
            raise InvalidRequestError(
                "distributed_timeout_ms", f"must be in [1, 3600000], got {1e3 * self.timeout_s:g}"
            )
        num_bytes = len(self.secret)
        if num_bytes != (MEETING_SECRET_BYTES if self.address else 0):
            wanted = f"{MEETING_SECRET_BYTES} with an address" if self.address else "0 without one"
            raise InvalidRequestError(
                "distributed_secret", f"number of bytes must be {wanted}, got {num_bytes}"
            )


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """An order to load a model.

    Attributes:
        spec: which slice of which model, and how.
        served_model_name: name that requests use; "" for the model's path.
        meeting: where to meet the other ranks; its epoch is that of the order.
        scheduler_name: of the scheduler, the same whenever it starts again.
    """

    spec: LoadSpec
    served_model_name: str
    meeting: Meeting
    scheduler_name: str


@dataclass(frozen=True, slots=True)
class LoadResponse:
    """What a worker has loaded.

    Attributes:
        model: what it turned out to be.
        checkpoint_digest: of configuration and tensors: ranks whose digests differ were given
            different models.
    """

    model: ModelInfo
    checkpoint_digest: bytes


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """How much cache fits.

    Attributes:
        num_blocks: blocks that fit.
        block_bytes: bytes of one, over all layers of this rank.
    """

    num_blocks: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class RunningStep:
    """What a worker does, as its heartbeats report it.

    Attributes:
        step_id: of the step under way; 0 if there is none.
        running_ms: for how long it has run.
        waits_for_ranks: whether it waits for other ranks.
        limit_ms: how long it may run before it counts as hanging; 0 if that is not known.
    """

    step_id: int
    running_ms: int
    waits_for_ranks: bool
    limit_ms: int


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The cache to allocate.

    Attributes:
        num_blocks: of the cache.
        options: how large blocks and steps are.
        keeps_contents: whether it is there already, and keeps what it holds.
    """

    num_blocks: int
    options: CacheOptions = field(default_factory=CacheOptions)
    keeps_contents: bool = False


@dataclass(frozen=True, slots=True)
class HostCache:
    """Where swapped blocks go.

    Attributes:
        num_blocks: that fit there.
        block_us: measured time to move one block one way; 0 without blocks.
        cache_bytes: memory of the blocks on the device, from where they go.
    """

    num_blocks: int
    block_us: float
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A full block whose keys and values are computed.

    Attributes:
        block_id: its place in the cache, or in the host's memory.
        depth: its place in its text, 1 for the first.
        digest: see quire/contract/block_hashes.py.
    """

    block_id: int
    depth: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class WorkerMirror:
    """What a worker holds, for a scheduler that has just started.

    Attributes:
        sequences: live ones.
        last_step_id: the last step that ran to its end since sequences were forgotten; 0 for none.
        cache: of which size and options the cache is; None if there is none.
        blocks: of the cache, those of no live sequence too, the least recently used first.
        host_blocks: of the host's memory, likewise.
    """

    sequences: tuple[MirroredSequence, ...] = ()
    last_step_id: int = 0
    cache: CacheSpec | None = None
    blocks: tuple[CachedBlock, ...] = ()
    host_blocks: tuple[CachedBlock, ...] = ()
