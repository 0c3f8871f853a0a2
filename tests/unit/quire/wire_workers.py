"""Examples of what workers are sent and send, and of what is recorded of it."""

from functools import partial

from quire.contract.block_shipping import (
    BlockLayout,
    BlockOrder,
    BlockPiece,
    ImportOrder,
    ImportResult,
)
from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.recording import EpochHeader, Record
from quire.contract.steps import MirroredSequence, StepGap
from quire.contract.versions import UNVERSIONED
from quire.contract.workers import (
    CachedBlock,
    CacheProfile,
    CacheSpec,
    HostCache,
    LoadRequest,
    LoadResponse,
    LoadSpec,
    Meeting,
    RunningStep,
    WorkerDescription,
    WorkerMirror,
)
from quire.wire import block_shipping, caches, mirror, recording, worker
from tests.unit.quire.wire_example import Example
from tests.unit.quire.wire_values import EPOCH, MODEL, ORDERS, RESULT

LOAD_OPTIONS = LoadOptions(
    dtype="float16",
    load_format="dummy",
    kv_cache_dtype="int8",
    quantization="w8a8",
    draft_model="/models/draft",
    max_model_len=2**15,
    invariant=True,
)
CACHE_OPTIONS = CacheOptions(
    block_size=32,
    max_num_seqs=7,
    max_num_batched_tokens=2**20,
    enforce_eager=True,
    gpu_memory_utilization=0.3,
    kv_cache_gib=0.7,
    swap_space=1.5,
)


def worker_examples() -> list[Example]:
    """Return those of the protos that workers are sent, send, and are recorded by."""
    spec = LoadSpec("/m", LOAD_OPTIONS, 1, 2)
    meeting = Meeting("host:1", "other", EPOCH, 1.5, bytes(range(32)))
    response = worker.execute_response_to_proto, worker.execute_response_from_proto
    description = worker.description_to_proto, worker.description_from_proto
    return [
        Example(
            WorkerDescription("1", "cuda:0", "sm_90", MODEL, 3, 2**40, EPOCH, "me", 8, "H200"),
            *description,
        ),
        Example(
            WorkerDescription("1", "cpu", "avx2", None, 0, 0, 0, "", UNVERSIONED), *description
        ),
        Example(
            LoadRequest(spec, "demo", meeting, "me"),
            worker.load_request_to_proto,
            worker.load_request_from_proto,
        ),
        Example(
            LoadResponse(MODEL, b"digest"),
            worker.load_response_to_proto,
            worker.load_response_from_proto,
        ),
        Example(
            CACHE_OPTIONS,
            partial(caches.profile_to_proto, EPOCH, num_at_host=3),
            caches.profile_from_proto,
        ),
        Example(
            CacheProfile(2**20, 2**33),
            caches.cache_profile_to_proto,
            caches.cache_profile_from_proto,
        ),
        Example(
            RunningStep(2**40, 2_100, True, 300_000),
            worker.running_step_to_proto,
            worker.running_step_from_proto,
        ),
        Example(
            CacheSpec(2**20, CACHE_OPTIONS, keeps_contents=True),
            partial(caches.cache_spec_to_proto, EPOCH),
            caches.cache_spec_from_proto,
        ),
        Example(
            CacheSpec(32, CacheOptions(swap_space=0.0)),
            partial(caches.cache_spec_to_proto, EPOCH),
            caches.cache_spec_from_proto,
        ),
        Example(HostCache(7, 1.5, 2**40), caches.host_cache_to_proto, caches.host_cache_from_proto),
        Example(ORDERS, worker.execute_request_to_proto, worker.execute_request_from_proto),
        Example(RESULT, *response),
        Example(StepGap(4, 6), *response),
        Example(
            WorkerMirror(
                (MirroredSequence(5, 9, 8, (3, 1), 2),),
                7,
                CacheSpec(2**20, CACHE_OPTIONS),
                (CachedBlock(3, 1, bytes(range(32))), CachedBlock(1, 2, bytes(32))),
                (CachedBlock(0, 1, bytes(range(32))),),
            ),
            mirror.mirror_to_proto,
            mirror.mirror_from_proto,
        ),
        Example(WorkerMirror(), mirror.mirror_to_proto, mirror.mirror_from_proto),
        *_block_shipping(),
        *_recording(),
    ]


def _block_shipping() -> list[Example]:
    blocks = CachedBlock(3, 1, bytes(range(32))), CachedBlock(1, 2, bytes(32))
    return [
        Example(
            ImportOrder("host:1", blocks, 2_000),
            partial(block_shipping.import_order_to_proto, EPOCH),
            block_shipping.import_order_from_proto,
        ),
        Example(
            ImportResult(3, 2**40, "late"),
            block_shipping.import_result_to_proto,
            block_shipping.import_result_from_proto,
        ),
        Example(
            BlockOrder(BlockLayout("5f7a", 16, 1, 2), (bytes(range(32)), bytes(32))),
            block_shipping.block_order_to_proto,
            block_shipping.block_order_from_proto,
        ),
        Example(
            BlockPiece(b"contents", b"checksum"),
            block_shipping.block_piece_to_proto,
            block_shipping.block_piece_from_proto,
        ),
    ]


def _recording() -> list[Example]:
    record = recording.record_to_proto, recording.record_from_proto
    header = EpochHeader(
        "1.2.3",
        2**60,
        3,
        True,
        LoadRequest(LoadSpec("/m", LOAD_OPTIONS, 0, 2), "demo", Meeting(epoch=EPOCH), "me"),
        LoadResponse(MODEL, b"digest"),
        CacheSpec(2**20, CACHE_OPTIONS, keeps_contents=True),
        HostCache(7, 1.5, 2**40),
        EPOCH - 1,
        9,
    )
    return [
        Example(Record(2**50, 2, header), *record),
        Example(Record(1, 0, ORDERS), *record),
        Example(Record(1, 0, RESULT), *record),
    ]
