// Products of warpgroups: wgmma.mma_async of 16-bit operands in shared memory, of which the first
// may be in registers, and then the second by columns; its fences and its groups. Each warp
// computes its 16 rows of the result when it begins a product or when it waits for it, as mma does
// (matrices.cpp): one by one in float32, in ascending order of k.
#include "products.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "memory.h"
#include "number_formats.h"
#include "operation.h"

namespace ptx {
namespace {

constexpr int kRows = 64;  // of the first operand
constexpr int kRowBytes = 128;
constexpr int kChunkBytes = 16;
constexpr int kDepth = 16;  // elements of K
constexpr int kChunks = kDepth * 2 / kChunkBytes;
constexpr int kMostColumns = 256;
constexpr int kPieceColumns = kRowBytes / 2;  // of an operand by columns
// Of an instruction's `detail`.
constexpr int kIsF16 = 1;
constexpr int kHasRegisters = 2;
constexpr int kIsByColumns = 4;  // the second operand
constexpr int kRegisters = 4;    // of an operand

bool has_registers(const Instruction& product) {
  return (product.detail & kHasRegisters) != 0;
}

bool is_by_columns(const Instruction& product) {
  return (product.detail & kIsByColumns) != 0;
}

// Four registers of a lane for 8 columns.
int num_columns(const Instruction& product) {
  return static_cast<int>(product.sums.size()) * 2;
}

// The address that a descriptor gives. All else in it must be what is understood here: rows of 128
// bytes, eight of which are 1,024 apart, whose chunks change places by bits 7 to 9 of the address.
uint32_t begin_of(const Warp& warp, uint64_t descriptor) {
  constexpr uint64_t kEightRows = 1024 / 16, kSwizzled = 1;
  if (descriptor >> 49 != kSwizzled << 13 || (descriptor >> 32 & 0x3fff) != kEightRows)
    warp.fail("a descriptor of a matrix that is not understood here", 0);
  const auto address = static_cast<uint32_t>(descriptor & 0x3fff) * 16;
  if (address % 1024 >= kRowBytes)
    warp.fail("a matrix whose first row is not at a multiple of 1,024", 0);
  if (address % kRowBytes + kDepth * 2 > kRowBytes)
    warp.fail("a matrix that reaches beyond its rows of 128 bytes", 0);
  return address;
}

// The same of an operand by columns: each of its 16 rows has a chunk of 8 columns in a row of 128
// bytes, and what does not fit it in others that lie `piece_bytes` behind.
struct Columns {
  uint32_t begin;
  uint32_t piece_bytes;
};

Columns columns_of(const Warp& warp, uint64_t descriptor, int columns) {
  const uint32_t begin = begin_of(warp, descriptor);
  const auto piece_bytes = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) * 16;
  if (begin % 1024 != 0) warp.fail("a matrix by columns that is not at a multiple of 1,024", 0);
  if (columns > kPieceColumns && (piece_bytes == 0 || piece_bytes % 1024 != 0))
    warp.fail("pieces of a matrix that are not at multiples of 1,024", 0);
  return {begin, piece_bytes};
}

// Where 16 bytes of a row lie.
uint32_t chunk_of(uint32_t begin, int row, int chunk) {
  const uint32_t address = begin + static_cast<uint32_t>(row * kRowBytes + chunk * kChunkBytes);
  return address ^ (address >> 7 & 7) << 4;
}

// Where 8 columns of a row lie.
uint32_t chunk_of(const Columns& matrix, int row, int column) {
  const auto piece = static_cast<uint32_t>(column / kPieceColumns);
  return chunk_of(matrix.begin + piece * matrix.piece_bytes, row, column % kPieceColumns / 8);
}

// Calls `visit` with the address of each 16 bytes that a product reads.
template <typename F>
void visit_operands(const Warp& warp, const Product& product, F&& visit) {
  const int columns = num_columns(*product.instruction);
  if (is_by_columns(*product.instruction)) {
    const Columns b = columns_of(warp, product.b, columns);
    for (int row = 0; row < kDepth; ++row)
      for (int column = 0; column < columns; column += 8) visit(chunk_of(b, row, column));
    return;
  }
  const auto visit_rows = [&](uint32_t begin, int rows) {
    for (int row = 0; row < rows; ++row)
      for (int chunk = 0; chunk < kChunks; ++chunk) visit(chunk_of(begin, row, chunk));
  };
  if (!has_registers(*product.instruction)) visit_rows(begin_of(warp, product.a), kRows);
  visit_rows(begin_of(warp, product.b), columns);
}

struct Bf16 {
  static float of(uint16_t bits) { return from_bf16(bits); }
};
struct F16 {
  static float of(uint16_t bits) { return from_f16(bits); }
};

// Rows of an operand from `first` on, each number where `place(row, k)` is.
template <typename Half, typename F>
void load_rows(Warp& warp, uint32_t begin, int first, int count, F&& place) {
  for (int row = 0; row < count; ++row) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint16_t bits[kChunkBytes / 2];
      std::memcpy(bits, warp.block().shared().at(chunk_of(begin, first + row, chunk)), sizeof bits);
      for (int i = 0; i < kChunkBytes / 2; ++i)
        *place(row, chunk * kChunkBytes / 2 + i) = Half::of(bits[i]);
    }
  }
}

// The warp's 16 rows of the first operand, from its registers, which hold them as mma's do.
template <typename Half>
void load_registers(Warp& warp, const Instruction& product, float (*a)[kDepth]) {
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      const uint16_t number = product.operands[row / 8 + k / 8 * 2];
      const uint32_t pair = warp.values<uint32_t>(number)[row % 8 * 4 + k % 8 / 2];
      a[row][k] = Half::of(static_cast<uint16_t>(pair >> 16 * (k % 2)));
    }
  }
}

// The second operand by columns.
template <typename Half>
void load_columns(Warp& warp, const Columns& matrix, int columns, float (*b)[kMostColumns]) {
  for (int k = 0; k < kDepth; ++k) {
    for (int column = 0; column < columns; column += 8) {
      uint16_t bits[8];
      std::memcpy(bits, warp.block().shared().at(chunk_of(matrix, k, column)), sizeof bits);
      for (int i = 0; i < 8; ++i) b[k][column + i] = Half::of(bits[i]);
    }
  }
}

// Adds the products of the warp's 16 rows.
template <typename Half>
void multiply(Warp& warp, const Product& product) {
  static thread_local float a[16][kDepth];
  static thread_local float b[kDepth][kMostColumns];
  static thread_local float sums[16][kMostColumns];
  const Instruction& instruction = *product.instruction;
  const int columns = num_columns(instruction);
  if (has_registers(instruction)) {
    load_registers<Half>(warp, instruction, a);
  } else {
    const int first_row = warp.number() % kWarpsOfGroup * 16;
    load_rows<Half>(warp, begin_of(warp, product.a), first_row, 16,
                    [](int row, int k) { return &a[row][k]; });
  }
  if (is_by_columns(instruction)) {
    load_columns<Half>(warp, columns_of(warp, product.b, columns), columns, b);
  } else {
    load_rows<Half>(warp, begin_of(warp, product.b), 0, columns,
                    [](int row, int k) { return &b[k][row]; });
  }
  const auto visit_sums = [&](auto&& visit) {
    for (size_t i = 0; i < instruction.sums.size(); ++i) {
      const int in_tile = static_cast<int>(i % 4);
      const int column = static_cast<int>(i / 4) * 8 + in_tile % 2;
      float* const lanes = warp.values<float>(instruction.sums[i]);
      for (int lane = 0; lane < kWarpSize; ++lane)
        visit(lanes[lane], sums[lane / 4 + in_tile / 2 * 8][column + lane % 4 * 2]);
    }
  };
  visit_sums([&](float& value, float& sum) { sum = product.adds ? value : 0.f; });
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < kDepth; ++k)
      for (int column = 0; column < columns; ++column)
        sums[row][column] += a[row][k] * b[k][column];
  visit_sums([](float& value, float& sum) { value = sum; });
}

void compute(Warp& warp, Product& product) {
  if (product.is_done) return;
  product.is_done = true;
  if ((product.instruction->detail & kIsF16) != 0) return multiply<F16>(warp, product);
  multiply<Bf16>(warp, product);
}

// The same value of all lanes.
template <typename T>
T of_all_lanes(Warp& warp, uint16_t number) {
  const T* const values = warp.values<T>(number);
  for (int lane = 1; lane < kWarpSize; ++lane) {
    if (values[lane] != values[0]) warp.fail("operands of a product that differ by lane", lane);
  }
  return values[0];
}

// Holds what the warp performs against the others of its warpgroup.
void take_step(Warp& warp, const Instruction& instruction, uint64_t a = 0, uint64_t b = 0) {
  WarpgroupOrder& order = warp.block().warpgroups();
  if (!order.is_whole(warp.number())) warp.fail("a warpgroup of fewer than four warps", 0);
  if (!order.add(warp.number(), {&instruction, warp.block().epoch(), a, b}))
    warp.fail("another warp of the warpgroup performs another product or wait", 0);
}

// A product touches registers that the warpgroup must have fenced since it touched them.
void check_fenced(const Warp& warp, uint16_t number) {
  if (!warp.products.is_fenced(number))
    warp.fail("a race: a product of registers that were touched without wgmma.fence", 0);
}

// a, b, whether it adds; the registers of `sums` are neither read nor written before the wait, nor
// are those of a.
void begin(Warp& warp, const Instruction& instruction, uint32_t) {
  const bool registers = has_registers(instruction);
  const uint16_t* const rest = instruction.operands + (registers ? kRegisters : 1);
  const auto a = registers ? 0 : of_all_lanes<uint64_t>(warp, instruction.operands[0]);
  const auto b = of_all_lanes<uint64_t>(warp, rest[0]);
  const uint32_t adds = warp.predicate(rest[1]);
  if (adds != 0 && adds != kAllLanes) warp.fail("operands of a product that differ by lane", 0);
  take_step(warp, instruction, a, b);
  Products& products = warp.products;
  if (!products.fit(instruction))
    warp.fail("a race: registers that another product of the warpgroup adds to", 0);
  for (const uint16_t number : instruction.sums) {
    if (products.is_read(number))
      warp.fail("a race: registers that another product of the warpgroup may yet read", 0);
    if (products.is_lent(number)) continue;
    if (adds != 0) warp.check_defined(number, kAllLanes);
    check_fenced(warp, number);
  }
  for (int i = 0; registers && i < kRegisters; ++i) check_fenced(warp, instruction.operands[i]);
  products.under_way.push_back({&instruction, products.num_groups, a, b, adds != 0, false});
  products.lend(instruction);
  for (int i = 0; registers && i < kRegisters; ++i) products.begin_read(instruction.operands[i]);
  Product& product = products.under_way.back();
  visit_operands(warp, product, [&](uint32_t address) { begin_product(warp, address); });
  if (warp.block().order().copies_are_early) compute(warp, product);
}

void fence(Warp& warp, const Instruction& instruction, uint32_t) {
  take_step(warp, instruction);
  warp.products.fence(warp.performed());
}

void commit(Warp& warp, const Instruction& instruction, uint32_t) {
  take_step(warp, instruction);
  ++warp.products.num_groups;
}

// Waits until at most the last so many groups are under way.
void wait(Warp& warp, const Instruction& instruction, uint32_t) {
  take_step(warp, instruction);
  Products& products = warp.products;
  const auto left = static_cast<int>(warp.values<uint32_t>(instruction.operands[0])[0]);
  const int last = products.num_groups - left - 1;
  size_t count = 0;
  std::vector<Product>& all = products.under_way;
  for (; count < all.size() && all[count].group <= last; ++count) {
    compute(warp, all[count]);
    visit_operands(warp, all[count], [&](uint32_t address) { end_product(warp, address); });
    const Instruction& ended = *all[count].instruction;
    products.give_back(ended);
    for (int i = 0; has_registers(ended) && i < kRegisters; ++i)
      products.end_read(ended.operands[i]);
    warp.define(ended.sums);
  }
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  // Those that are left may add to the same registers.
  for (const Product& each : all) products.lend(*each.instruction);
}

void fence_for_products(Warp& warp, const Instruction&, uint32_t lanes) {
  for (; lanes != 0; lanes &= lanes - 1)
    warp.block().shared().fence(warp.number() * kWarpSize + __builtin_ctz(lanes),
                                warp.block().epoch());
}

// Of registers that a warpgroup has or is to have; how many are left is not looked at.
void share_registers(Warp& warp, const Instruction& instruction, uint32_t) {
  take_step(warp, instruction);
  const auto number = warp.values<uint32_t>(instruction.operands[0])[0];
  if (number < 24 || number > 256 || number % 8 != 0)
    warp.fail("a number of registers that no warpgroup can have", 0);
}

// The columns of "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"; 0 of other names.
int columns_of_name(const Operation& operation) {
  const std::vector<std::string>& parts = operation.parts;
  if (parts.size() != 8 || parts[2] != "sync" || parts[3] != "aligned" || parts[5] != "f32" ||
      parts[6] != parts[7] || (parts[6] != "bf16" && parts[6] != "f16"))
    return 0;
  const std::string& shape = parts[4];
  if (shape.rfind("m64n", 0) != 0) return 0;
  const long columns = std::strtol(shape.c_str() + 4, nullptr, 10);
  const bool is_known = columns >= 8 && columns <= kMostColumns && columns % 8 == 0 &&
                        shape == "m64n" + std::to_string(columns) + "k16";
  return is_known ? static_cast<int>(columns) : 0;
}

}  // namespace

Simple find_product(const Operation& operation, Instruction* instruction) {
  if (instruction->name == "fence.proxy.async.shared::cta") return {fence_for_products, {}};
  if (operation.base() != "wgmma" && operation.base() != "setmaxnreg") return {};
  instruction->kind = Instruction::Kind::kAligned;
  if (instruction->name == "wgmma.fence.sync.aligned") return {fence, {}};
  if (instruction->name == "wgmma.commit_group.sync.aligned") return {commit, {}};
  if (instruction->name == "wgmma.wait_group.sync.aligned") return {wait, {{}, {Type::kU32}}};
  if (instruction->name == "setmaxnreg.inc.sync.aligned.u32" ||
      instruction->name == "setmaxnreg.dec.sync.aligned.u32")
    return {share_registers, {{}, {Type::kU32}}};
  const int columns = columns_of_name(operation);
  const std::vector<std::string>& operands = operation.operands;
  // Signs of both operands; then, of an operand in shared memory, whether it is by columns.
  const bool registers = operands.size() > 1 && operands[1][0] == '{';
  const bool by_columns = registers && operands.back() == "1";
  const std::vector<std::string> numbers =
      registers ? std::vector<std::string>{"1", "1", by_columns ? "1" : "0"}
                : std::vector<std::string>{"1", "1", "0", "0"};
  if (operation.parts[1] != "mma_async" || columns == 0 || operands.size() != 4 + numbers.size() ||
      !std::equal(numbers.begin(), numbers.end(), operands.begin() + 4))
    throw DecodeError("a product of a warpgroup that is not understood here");
  instruction->detail = (operation.parts[6] == "f16" ? kIsF16 : 0) |
                        (registers ? kHasRegisters : 0) | (by_columns ? kIsByColumns : 0);
  if (registers && std::count(operands[1].begin(), operands[1].end(), ',') != kRegisters - 1)
    throw DecodeError("a number of operands");
  const Type first = registers ? Type::kU32 : Type::kU64;
  return {begin,
          {std::vector<Type>(static_cast<size_t>(columns / 2), Type::kF32),
           {first, Type::kU64, Type::kPred}}};
}

}  // namespace ptx
