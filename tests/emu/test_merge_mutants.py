"""Bugs planted in the merge of attention's partial results: the emulator must notice each."""

from tests.emu.planted_bugs import PlantedBugs

# What is wrong: the text of the kernel that is replaced, and by what.
MUTANTS = {
    "merges without work": ("  if (work.seq == kNoWork) return;\n", ""),
    "columns that do not exist": (
        "  if (work.column + column >= bounds.num_columns) return;\n",
        "",
    ),
    "no barrier before maxima of warps are read": (
        "__syncthreads();        // maxima of warps are there",
        "//",
    ),
    "no barrier before factors are read": ("__syncthreads();  // factors are there", ""),
    "a barrier that half of the block skips": (
        "__syncthreads();  // factors are there",
        "if (threadIdx.x < 64) __syncthreads();",
    ),
    "no barrier after the wait for copies": ("__syncwarp();  // the batch is there", "//"),
    "no wait for copies": ("ptx::async_wait<Shape::kStages - 2>();", ""),
    "too few copies waited for": (
        "ptx::async_wait<Shape::kStages - 2>();",
        "ptx::async_wait<Shape::kStages - 1>();",
    ),
    "a batch copied too far ahead": ("i < Shape::kStages - 1; ++i", "i < Shape::kStages; ++i"),
    "copies that stay in their place": (
        "(place_ + Shape::kBatch * kWarpSize) % (Shape::kRing * kWarpSize)",
        "place_",
    ),
    "slots beyond the last": ("i < left_)", "true)"),
    "the last slot left out": (
        "num_slots - lane / kLanes : 0",
        "num_slots - 1 - lane / kLanes : 0",
    ),
    "rings that overlap": ("warp * Shape::kRing * kWarpSize", "warp * Shape::kBatch * kWarpSize"),
    "a batch taken from another's place": ("i % Shape::kRing * kWarpSize", "i * kWarpSize"),
    "the first part of a head": (
        "static_cast<int>(blockIdx.x) % Shape::kParts * Shape::kElements",
        "0 * Shape::kElements",
    ),
    "a scan of half a warp": ("distance < kWarpSize; distance", "distance < 16; distance"),
    "a scan of what lies behind": ("if (lane >= distance) largest", "if (lane > distance) largest"),
    "the maximum of the warp itself as one before it": (
        "if (w < warp) before",
        "if (w <= warp) before",
    ),
    "warps before it left out": ("if (w < warp) before = fmaxf(before, of_warp);", ""),
    "slots of earlier rounds left out": ("float before = total_;", "float before = -INFINITY;"),
    "the warp's last maximum beside its first lane": (
        "lane == 0 ? before : fmaxf(before, last)",
        "fmaxf(before, last)",
    ),
    "its own maximum as that before": (
        "__shfl_up_sync(kFullMask, largest, 1)",
        "largest",
    ),
    "slots beyond the last that weigh something": (
        "    if (first + thread >= num_slots_) shown = {1.f, -0.f, 0.f, 0.f};\n",
        "",
    ),
    "slots beyond the last that lose a sign": ("{1.f, -0.f, 0.f, 0.f}", "{1.f, 0.f, 0.f, 0.f}"),
    "a first slot that loses a sign": ("float acc = -0.f;", "float acc = 0.f;"),
    "a prefix left out": ("states.load(0);", "states.load(1);"),
    "slots loaded a round late": ("states.load(first + kMmaThreads);", "states.load(first);"),
    "the factors of the first slots": ("= slots[i + j];", "= slots[j];"),
    "sums that are not rescaled": ("sum = merge_values(sum, slot.z, factors)", "sum += slot.z"),
    "no sink": (
        "total.add_sink(p, bounds.head(work.kv_head, work.column + column))",
        "1.f",
    ),
    "a sink beside the last maximum alone": ("{states.largest(), sum}", "{kUnseen, sum}"),
    "a sink that leaves values as they were": ("acc * factor / total", "acc / total"),
    "no scale of values": ("acc * factor / total.sum * value_scale", "acc * factor / total.sum"),
}


class TestMerge(PlantedBugs):
    driver = "merge_driver.cpp"
    kernel = ("attention/merge.cuh", "attention/mma_columns.cuh")
    mutants = MUTANTS
