"""Bugs planted in the sum over ranks in memory of peers: the emulator must notice each of them.

That a flag is stored with release and loaded with acquire makes no difference to the processor that
the emulator runs on: tests/ptx and tests/machine_code look at it.
"""

from tests.emu.planted_bugs import PlantedBugs

KERNEL = ("peers/peer_sum.cu",)
SOURCES = ("core/check.cpp", "cuda/peers/peer_memory.cu")

# What is wrong: the text of the kernel that is replaced, and by what.
MUTANTS = {
    "one half": ("call % 2 * kPeerHalfBytes", "0 * kPeerHalfBytes"),
    "calls that are not counted": ("if (threadIdx.x == 0) peers.calls[blockIdx.x] = call;", ""),
    "the flag of the call before": (
        "flag_of(peers.of_rank[other], peers.rank), call);",
        "flag_of(peers.of_rank[other], peers.rank), call - 1);",
    ),
    "the call before is enough": ("(flag) - call) >= 0)", "(flag) - call) >= -1)"),
    "no call ahead is taken": ("(flag) - call) >= 0)", "(flag) - call) == 0)"),
    "numbers that do not wrap around": (
        "static_cast<int32_t>(ptx::load_acquire(flag) - call) >= 0",
        "ptx::load_acquire(flag) >= call",
    ),
    "nothing is awaited": ("!(meets && await_peer(peers, own_flag, call))", "!meets"),
    "one flag for all blocks": ("flags + blockIdx.x * kMaxPeers + rank", "flags + rank"),
    "one flag for all ranks": (
        "flags + blockIdx.x * kMaxPeers + rank",
        "flags + blockIdx.x * kMaxPeers",
    ),
    "the last rank is not awaited": (
        "other < kRanks && other != peers.rank",
        "other < kRanks - 1 && other != peers.rank",
    ),
    "no barrier behind the piece": ("__syncthreads();  // the piece is written", ""),
    "no barrier behind the flags": ("__syncthreads();  // those of the others are", ""),
    "one after the other": (
        "for (int rank = 0; rank < kRanks; rank += 2 * distance) sum[rank] +=",
        "for (int rank = 0; rank < distance; ++rank) sum[0] +=",
    ),
    "added in the type of the summands": (
        "sum[rank] += sum[rank + distance];",
        "sum[rank] = to_float(from_float<T>(sum[rank] + sum[rank + distance]));",
    ),
    "the own summand for all": ("rank == peers.rank ? own : __ldcg(from)", "own"),
    "a piece that is not written": (
        "*reinterpret_cast<uint4*>(peers.of_rank[peers.rank] + place) = own;",
        "",
    ),
    "the same piece for all blocks": (
        "const int64_t place = call % 2 * kPeerHalfBytes + pack * 16;",
        "const int64_t place = call % 2 * kPeerHalfBytes + threadIdx.x * 16;",
    ),
    "beyond the end": ("const bool has_pack = pack < num_packs;", "const bool has_pack = true;"),
    "the last 16 bytes are left out": ("pack < num_packs;", "pack < num_packs - 1;"),
    "nobody is abandoned": (
        "if (ptx::load_relaxed(peers.abandoned) != 0) return false;",
        "",
    ),
    "no end of waiting": (
        "if (ptx::nanoseconds() - begun > peers.timeout_ns) return false;",
        "",
    ),
    "a failure is not reported to a rank that waits": (
        "if (ptx::load_relaxed(failed_of(peers.of_rank[peers.rank])) != 0) return false;",
        "",
    ),
    "a failure that is not reported": ("if (other < kRanks && any_fails)", "if (false)"),
    "a failure that the others do not know": (
        "if (other < kRanks && any_fails)",
        "if (other == peers.rank && any_fails)",
    ),
    "a failure that leaves what was there": (
        "if (has_pack) reinterpret_cast<uint4*>(out)[pack] = uint4{};",
        "",
    ),
}


class TestSumsOverRanks(PlantedBugs):
    driver = "peers_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
