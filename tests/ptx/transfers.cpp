// Loads, stores, atomics, asynchronous copies, fences and the barrier of a warp.
#include <algorithm>
#include <cstring>

#include "elementwise.h"
#include "memory.h"
#include "module.h"

namespace ptx {
namespace {

enum class Space { kParameter, kShared, kGlobal, kGeneric };

constexpr int kMostBytes = 16;

// The addresses that active lanes give in a register, by lane.
struct Addresses {
  uint64_t of_lane[kWarpSize];
  uint32_t shared[kWarpSize];  // those of active lanes, without gaps
  uint64_t global[kWarpSize];
  int count = 0;
};

template <Space kSpace>
Addresses addresses(Warp& warp, const Instruction& instruction, uint16_t number, uint32_t lanes) {
  Addresses found;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    uint64_t address = 0;
    if (kSpace == Space::kShared) {
      address = static_cast<uint32_t>(warp.values<uint32_t>(number)[lane] + instruction.offset);
    } else {
      address = warp.values<uint64_t>(number)[lane] + static_cast<uint64_t>(instruction.offset);
    }
    found.of_lane[lane] = address;
    found.shared[found.count] = static_cast<uint32_t>(address);
    found.global[found.count++] = address;
  }
  return found;
}

template <Space kSpace>
bool is_shared(uint64_t address) {
  return kSpace == Space::kShared || (kSpace == Space::kGeneric && address >= kSharedWindow);
}

template <Space kSpace>
bool is_global(uint64_t address) {
  return kSpace == Space::kGlobal || (kSpace == Space::kGeneric && address < kSharedWindow);
}

// An address in shared memory, without what makes it generic.
template <Space kSpace>
uint32_t in_shared(Warp& warp, int lane, uint64_t address) {
  if (kSpace == Space::kGeneric) address -= kSharedWindow;
  if (address > 0xffffffff) warp.fail("an address outside of shared memory", lane);
  return static_cast<uint32_t>(address);
}

template <Space kSpace>
void count(Warp& warp, const Addresses& all, int bytes) {
  Counters& counters = warp.block().counters();
  if (kSpace == Space::kGeneric) {
    Addresses shared, global;
    for (int i = 0; i < all.count; ++i) {
      const uint64_t address = all.global[i];
      if (is_shared<kSpace>(address)) {
        shared.shared[shared.count++] = static_cast<uint32_t>(address - kSharedWindow);
      } else {
        global.global[global.count++] = address;
      }
    }
    if (shared.count > 0) count<Space::kShared>(warp, shared, bytes);
    if (global.count > 0) count<Space::kGlobal>(warp, global, bytes);
  }
  if (kSpace == Space::kShared) count_wavefronts(all.shared, all.count, bytes, &counters);
  if (kSpace == Space::kGlobal) count_sectors(all.global, all.count, bytes, &counters);
}

void load_parameter(Warp& warp, int lane, uint64_t address, int bytes, void* values) {
  const std::vector<std::byte>& parameters = warp.block().parameters();
  if (address % static_cast<uint64_t>(bytes) != 0) warp.fail("a misaligned parameter", lane);
  if (address + static_cast<uint64_t>(bytes) > parameters.size())
    warp.fail("an address outside of the parameters", lane);
  std::memcpy(values, &parameters[address], static_cast<size_t>(bytes));
}

// The value in a register that may be wider, by the sign of its type.
void widen(const std::byte* value, Type type, std::byte* into, int register_bytes) {
  const auto bytes = static_cast<size_t>(size_of(type));
  int64_t wide = 0;
  std::memcpy(&wide, value, bytes);
  const int unused = 64 - 8 * static_cast<int>(bytes);
  if (type == Type::kS8 || type == Type::kS16 || type == Type::kS32)
    wide = static_cast<int64_t>(static_cast<uint64_t>(wide) << unused) >> unused;
  std::memcpy(into, &wide, static_cast<size_t>(register_bytes));
}

// {d0, ...}, [address]; what is strong may be written by others meanwhile.
template <Space kSpace, bool kIsStrong = false>
void load(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const int element = size_of(instruction.type);
  const int bytes = element * instruction.vector;
  const Addresses all =
      addresses<kSpace>(warp, instruction, instruction.operands[instruction.num_written], lanes);
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    std::byte values[kMostBytes];
    const uint64_t address = all.of_lane[lane];
    if (kSpace == Space::kParameter) load_parameter(warp, lane, address, bytes, values);
    if (is_global<kSpace>(address)) load_global(warp, lane, address, bytes, values, kIsStrong);
    if (is_shared<kSpace>(address))
      load_shared(warp, lane, lane, in_shared<kSpace>(warp, lane, address), bytes, values);
    for (int i = 0; i < instruction.vector; ++i) {
      std::byte* const into = warp.values<std::byte>(instruction.operands[i]);
      widen(values + i * element, instruction.type, into + lane * instruction.detail,
            instruction.detail);
    }
  }
  count<kSpace>(warp, all, bytes);
}

template <bool kIsRelease>
void order_write(Warp& warp, int lane) {
  const int thread = warp.number() * kWarpSize + lane;
  if (!kIsRelease) return warp.block().wrote(thread);
  if (warp.block().others_wrote(thread))
    warp.fail("a race: a release beside what other threads have written, without a barrier", lane);
}

// [address], {a0, ...}
template <Space kSpace, bool kIsStrong = false>
void store(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const int element = size_of(instruction.type);
  const int bytes = element * instruction.vector;
  const Addresses all = addresses<kSpace>(warp, instruction, instruction.operands[0], lanes);
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    std::byte values[kMostBytes];
    for (int i = 0; i < instruction.vector; ++i) {
      const std::byte* const from = warp.values<std::byte>(instruction.operands[i + 1]);
      std::memcpy(values + i * element, from + lane * instruction.detail,
                  static_cast<size_t>(element));
    }
    const uint64_t address = all.of_lane[lane];
    if (is_shared<kSpace>(address))
      store_shared(warp, lane, in_shared<kSpace>(warp, lane, address), bytes, values);
    if (!is_global<kSpace>(address)) continue;
    order_write<kIsStrong>(warp, lane);
    store_global(warp, lane, address, bytes, values, kIsStrong);
  }
  count<kSpace>(warp, all, bytes);
}

struct Add {
  static uint32_t of(uint32_t a, uint32_t b) { return a + b; }
};
struct Or {
  static uint32_t of(uint32_t a, uint32_t b) { return a | b; }
};

// d, [address], b: the lanes in turn.
template <Space kSpace, typename F>
void atomic(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const Addresses all = addresses<kSpace>(warp, instruction, instruction.operands[1], lanes);
  const uint32_t* const b = warp.values<uint32_t>(instruction.operands[2]);
  write<uint32_t>(warp, instruction, lanes, [&](int lane) {
    const uint64_t address = all.of_lane[lane];
    std::byte* const place = kSpace == Space::kShared
                                 ? atomic_shared(warp, lane, static_cast<uint32_t>(address), 4)
                                 : atomic_global(warp, lane, address, 4);
    uint32_t before;
    std::memcpy(&before, place, sizeof before);
    const uint32_t after = F::of(before, b[lane]);
    std::memcpy(place, &after, sizeof after);
    return before;
  });
  count<kSpace>(warp, all, 4);
}

// [shared], [global], 16, how many of them are read; the rest becomes zero.
void copy(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  constexpr int kBytes = 16;
  const Addresses to = addresses<Space::kShared>(warp, instruction, instruction.operands[0], lanes);
  const Addresses from =
      addresses<Space::kGlobal>(warp, instruction, instruction.operands[1], lanes);
  const uint32_t* const valid = warp.values<uint32_t>(instruction.operands[3]);
  Addresses read;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (valid[lane] != 0 && valid[lane] != kBytes)
      warp.fail("a copy of other than 0 or 16 bytes", lane);
    AsyncCopy each{lane,
                   warp.copy_groups[lane],
                   static_cast<uint32_t>(to.of_lane[lane]),
                   from.of_lane[lane],
                   static_cast<int>(valid[lane]),
                   {}};
    begin_copy(warp, lane, each.shared, kBytes);
    if (valid[lane] != 0) {
      load_global(warp, lane, each.global, kBytes, each.early);
      read.global[read.count++] = each.global;
    }
    warp.copies.push_back(each);
  }
  count<Space::kShared>(warp, to, kBytes);
  count<Space::kGlobal>(warp, read, kBytes);
  warp.block().counters().copied_bytes += static_cast<uint64_t>(read.count) * kBytes;
}

void commit(Warp& warp, const Instruction&, uint32_t lanes) {
  for (; lanes != 0; lanes &= lanes - 1) ++warp.copy_groups[__builtin_ctz(lanes)];
}

// Waits until at most the last so many groups of each lane are under way; with `detail` for all
// copies, those of no group too.
void wait(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const bool is_for_all = instruction.detail != 0;
  std::vector<AsyncCopy> left;
  for (AsyncCopy& each : warp.copies) {
    const bool is_waiting = (lanes >> each.lane & 1) != 0;
    int last = warp.copy_groups[each.lane];
    if (!is_for_all)
      last -= static_cast<int>(warp.values<uint32_t>(instruction.operands[0])[each.lane]) + 1;
    if (!is_waiting || each.group > last) {
      left.push_back(each);
      continue;
    }
    if (!warp.block().order().copies_are_early && each.valid_bytes != 0)
      load_global(warp, each.lane, each.global, each.valid_bytes, each.early);
    end_copy(warp, each.lane, each.shared, sizeof each.early, each.early);
  }
  warp.copies = std::move(left);
}

void fence(Warp& warp, const Instruction&, uint32_t lanes) {
  for (; lanes != 0; lanes &= lanes - 1)
    warp.block().blocks().fence(who(warp, __builtin_ctz(lanes)));
}

// The kernel before this one in the stream is over, and what it wrote is there.
void await_earlier(Warp& warp, const Instruction&, uint32_t lanes) {
  warp.after_earlier |= lanes;
}

// Lets the next kernel start, which awaits the end of this one.
void let_next_start(Warp&, const Instruction&, uint32_t) {}

// Ends the kernel with an error.
void trap(Warp& warp, const Instruction&, uint32_t lanes) {
  warp.fail("a kernel that traps", __builtin_ctz(lanes));
}

// Orders the lanes of a whole warp.
void warp_barrier(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  if (lanes != kAllLanes || warp.values<uint32_t>(instruction.operands[0])[0] != kAllLanes)
    warp.fail("bar.warp.sync of a part of a warp, which is not understood here", 0);
  ++warp.epoch;
}

// d, a: the generic address of one in shared memory.
void make_generic(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const uint64_t* const a = warp.values<uint64_t>(instruction.operands[1]);
  write<uint64_t>(warp, instruction, lanes, [&](int lane) { return kSharedWindow + a[lane]; });
}

// A clock of which nothing is known but that it goes on: by a microsecond with each look.
void read_clock(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  static uint64_t now = 0;
  now += 1000;
  write<uint64_t>(warp, instruction, lanes, [](int) { return now; });
}

// Whether all parts of the name between the first and the type are known.
bool only_has(const Operation& operation, const std::vector<std::string>& known) {
  return std::all_of(operation.parts.begin() + 1, operation.parts.end() - 1,
                     [&](const std::string& part) {
                       return std::find(known.begin(), known.end(), part) != known.end();
                     });
}

template <Space kSpace>
Handler find_atomic_of(const std::string& name) {
  if (name == "add") return atomic<kSpace, Add>;
  if (name == "or") return atomic<kSpace, Or>;
  return nullptr;
}

}  // namespace

Handler find_load(const Operation& operation) {
  if (operation.base() != "ld" ||
      !only_has(operation, {"param", "shared", "global", "nc", "cg", "ca", "v2", "v4", "relaxed",
                            "acquire", "sys"}))
    return nullptr;
  if (operation.has("param")) return load<Space::kParameter>;
  if (operation.has("shared")) return load<Space::kShared>;
  if (operation.has("sys")) return load<Space::kGlobal, true>;
  if (operation.has("global")) return load<Space::kGlobal>;
  return only_has(operation, {"v2", "v4"}) ? load<Space::kGeneric> : nullptr;
}

Handler find_store(const Operation& operation) {
  if (operation.base() != "st" ||
      !only_has(operation, {"shared", "global", "cg", "v2", "v4", "release", "sys"}))
    return nullptr;
  if (operation.has("shared")) return store<Space::kShared>;
  if (operation.has("release")) return store<Space::kGlobal, true>;
  if (operation.has("global")) return store<Space::kGlobal>;
  return only_has(operation, {"v2", "v4"}) ? store<Space::kGeneric> : nullptr;
}

Simple find_clock() {
  return {read_clock, {{Type::kU64}, {}}};
}

Simple find_atomic(const Operation& operation, Type type) {
  if (operation.base() != "atom" || size_of(type) != 4 || operation.parts.size() != 4) return {};
  const std::string& name = operation.parts[2];
  const Type kU32 = Type::kU32;
  if (operation.parts[1] == "shared")
    return {find_atomic_of<Space::kShared>(name), {{kU32}, {kU32, kU32}}};
  if (operation.parts[1] == "global")
    return {find_atomic_of<Space::kGlobal>(name), {{kU32}, {Type::kU64, kU32}}};
  return {};
}

Simple find_copy(const std::string& name, Instruction* instruction) {
  constexpr Type kU32 = Type::kU32;
  if (name.rfind("cp.async.cg.shared.global", 0) == 0)
    return {copy, {{}, {kU32, Type::kU64, kU32, kU32}}};
  if (name == "cp.async.commit_group") return {commit, {}};
  if (name == "cp.async.wait_group") return {wait, {{}, {kU32}}};
  if (name == "cp.async.wait_all") {
    instruction->detail = 1;
    return {wait, {}};
  }
  if (name == "cvta.shared.u64") return {make_generic, {{Type::kU64}, {Type::kU64}}};
  if (name == "membar.gl") return {fence, {}};
  if (name == "griddepcontrol.wait") return {await_earlier, {}};
  if (name == "griddepcontrol.launch_dependents") return {let_next_start, {}};
  if (name == "trap") return {trap, {}};
  if (name == "bar.warp.sync") {
    instruction->kind = Instruction::Kind::kCollective;
    return {warp_barrier, {{}, {kU32}}};
  }
  return {};
}

}  // namespace ptx
