// Products of a warpgroup, four warps that multiply together (wgmma, of sm_90a alone): operands lie
// in shared memory, the first in registers if it is to, results in registers, and other
// instructions go on meanwhile. The emulation of these functions is in tests/emu/include.
#pragma once

#include "cuda/ptx.h"

#if !defined(__CUDACC__)
#define QUIRE_HAS_WARPGROUPS 1
#include "emulated_warpgroup.h"
#else

namespace quire::cuda::ptx {

// Whether the code that is being compiled may have these instructions. Elsewhere kernels that would
// call these functions are empty, and nothing launches them.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QUIRE_HAS_WARPGROUPS 1
#define QUIRE_WARPGROUP_ASM(...) asm volatile(__VA_ARGS__)
#else
#define QUIRE_HAS_WARPGROUPS 0
#define QUIRE_WARPGROUP_ASM(...) static_cast<void>(0)
#endif

// __syncthreads() at one of several places: warps that stand at others meet all the same.
__device__ __forceinline__ void meet_block() {
  asm volatile("bar.sync 0;" ::: "memory");
}

// Leaves the warpgroup so many registers of a thread, where it has more, or waits until there are
// so many for it, where it has fewer: a block has as many as all of its threads had at first.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  QUIRE_WARPGROUP_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  QUIRE_WARPGROUP_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// What this thread has written to shared memory, by copies that it has waited for too, is there for
// products that begin behind a barrier.
__device__ __forceinline__ void fence_for_products() {
  QUIRE_WARPGROUP_ASM("fence.proxy.async.shared::cta;" :: : "memory");
}

// What registers have now is there for the products that follow.
__device__ __forceinline__ void begin_products() {
  QUIRE_WARPGROUP_ASM("wgmma.fence.sync.aligned;" :: : "memory");
}

// Closes a group of products.
__device__ __forceinline__ void commit_products() {
  QUIRE_WARPGROUP_ASM("wgmma.commit_group.sync.aligned;" :: : "memory");
}

// Waits until at most the last `kGroups` groups are under way.
template <int kGroups>
__device__ __forceinline__ void wait_for_products() {
  QUIRE_WARPGROUP_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Sums have here what was computed before, and products that were waited for: the compiler sees
// neither of the two waits in them.
template <int kTiles>
__device__ __forceinline__ void hold_sums(float (&c)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+f"(c[i][j])::"memory");
}

// An operand in registers has here what was computed before, in front of begin_products, or stays
// what it is until here, behind the wait for its product.
__device__ __forceinline__ void hold_operand(uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// A matrix whose rows have 128 bytes, of which chunk c lies in the place of c ^ (row % 8); the
// first row lies at a multiple of 1,024. `begin` is its first element of 16 in that row.
__device__ __forceinline__ uint64_t describe_rows(const char* begin) {
  constexpr uint64_t kEightRows = 1024 / 16, kSwizzled = 1;
  return (shared_address(begin) & 0x3ffff) / 16 | kEightRows << 32 | kSwizzled << 62;
}

// A matrix that begins so many bytes behind another: of the 64 bits the address alone changes.
__device__ __forceinline__ uint64_t matrix_behind(uint64_t matrix, int bytes) {
  const auto low = static_cast<uint32_t>(matrix) + static_cast<uint32_t>(bytes / 16);
  return matrix >> 32 << 32 | low;
}

// Sixteen rows of as many elements as a product has columns, in pieces of 64 elements. A row of a
// piece has 128 bytes, whose chunks lie as those of describe_rows; the next piece begins
// `piece_bytes` behind. `begin` is the first row in the first piece, at a multiple of 1,024.
__device__ __forceinline__ uint64_t describe_columns(const char* begin, int piece_bytes) {
  return describe_rows(begin) | static_cast<uint64_t>(piece_bytes / 16) << 16;
}

// Begins c += a b^T, with a [64, 16], b [8 kColumnTiles, 16] and c [64, 8 kColumnTiles] float32:
// warp w of the warpgroup has rows 16 w to 16 w + 15 of c, as those of multiply_add.
template <typename T, int kColumnTiles>
struct WarpgroupProduct;

// Begins c += a b, with b [16, 8 kColumnTiles] by describe_columns, and a in registers, which hold
// the warp's 16 rows as those of multiply_add do.
template <typename T, int kColumnTiles>
struct RegisterProduct;

// The same of c += a b^T, with b [8 kColumnTiles, 16] by describe_rows.
template <typename T, int kColumnTiles>
struct RegisterRowsProduct;

#define QUIRE_REGISTERS_3 "%0,%1,%2,%3"
#define QUIRE_REGISTERS_7 \
  QUIRE_REGISTERS_3       \
  ",%4,%5,%6,%7"
#define QUIRE_REGISTERS_15 \
  QUIRE_REGISTERS_7        \
  ",%8,%9,%10,%11,%12,%13,%14,%15"
#define QUIRE_REGISTERS_31 \
  QUIRE_REGISTERS_15       \
  ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define QUIRE_REGISTERS_63                                           \
  QUIRE_REGISTERS_31                                                 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define QUIRE_REGISTERS_127                                                                    \
  QUIRE_REGISTERS_63                                                                           \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85"   \
  ",%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105"     \
  ",%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123" \
  ",%124,%125,%126,%127"

#define QUIRE_SUMS_1(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define QUIRE_SUMS_2(i) QUIRE_SUMS_1(i), QUIRE_SUMS_1(i + 1)
#define QUIRE_SUMS_4(i) QUIRE_SUMS_2(i), QUIRE_SUMS_2(i + 2)
#define QUIRE_SUMS_8(i) QUIRE_SUMS_4(i), QUIRE_SUMS_4(i + 4)
#define QUIRE_SUMS_16(i) QUIRE_SUMS_8(i), QUIRE_SUMS_8(i + 8)
#define QUIRE_SUMS_32(i) QUIRE_SUMS_16(i), QUIRE_SUMS_16(i + 16)

#define QUIRE_WARPGROUP_PRODUCT(T, name, shape, tiles, registers, a_operand, b_operand)          \
  template <>                                                                                    \
  struct WarpgroupProduct<T, tiles> {                                                            \
    static __device__ __forceinline__ void begin(float (&c)[tiles][4], uint64_t a, uint64_t b) { \
      QUIRE_WARPGROUP_ASM(                                                                       \
          "{.reg .pred adds; setp.eq.b32 adds, 0, 0; wgmma.mma_async.sync.aligned." shape        \
          ".f32." name "." name " {" registers "}, " a_operand ", " b_operand                    \
          ", adds, 1, 1, 0, 0;}" : QUIRE_SUMS_##tiles(0) : "l"(a),                               \
          "l"(b));                                                                               \
    }                                                                                            \
  };
#define QUIRE_WARPGROUP_PRODUCTS(shape, tiles, registers, a_operand, b_operand)        \
  QUIRE_WARPGROUP_PRODUCT(bf16, "bf16", shape, tiles, registers, a_operand, b_operand) \
  QUIRE_WARPGROUP_PRODUCT(f16, "f16", shape, tiles, registers, a_operand, b_operand)

QUIRE_WARPGROUP_PRODUCTS("m64n32k16", 4, QUIRE_REGISTERS_15, "%16", "%17")
QUIRE_WARPGROUP_PRODUCTS("m64n64k16", 8, QUIRE_REGISTERS_31, "%32", "%33")
QUIRE_WARPGROUP_PRODUCTS("m64n128k16", 16, QUIRE_REGISTERS_63, "%64", "%65")
QUIRE_WARPGROUP_PRODUCTS("m64n256k16", 32, QUIRE_REGISTERS_127, "%128", "%129")

#define QUIRE_REGISTER_PRODUCT(Product, by_columns, T, name, shape, tiles, registers, a_operand, \
                               b_operand)                                                        \
  template <>                                                                                    \
  struct Product<T, tiles> {                                                                     \
    static __device__ __forceinline__ void begin(float (&c)[tiles][4], const uint32_t (&a)[4],   \
                                                 uint64_t b) {                                   \
      QUIRE_WARPGROUP_ASM(                                                                       \
          "{.reg .pred adds; setp.eq.b32 adds, 0, 0; wgmma.mma_async.sync.aligned." shape        \
          ".f32." name "." name " {" registers "}, {" a_operand "}, " b_operand                  \
          ", adds, 1, 1, " by_columns ";}" : QUIRE_SUMS_##tiles(0) : "r"(a[0]),                  \
          "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                              \
    }                                                                                            \
  };
#define QUIRE_REGISTER_PRODUCTS(Product, by_columns, ...)                \
  QUIRE_REGISTER_PRODUCT(Product, by_columns, bf16, "bf16", __VA_ARGS__) \
  QUIRE_REGISTER_PRODUCT(Product, by_columns, f16, "f16", __VA_ARGS__)
#define QUIRE_PRODUCTS_OF_64 "m64n64k16", 8, QUIRE_REGISTERS_31, "%32,%33,%34,%35", "%36"
#define QUIRE_PRODUCTS_OF_128 "m64n128k16", 16, QUIRE_REGISTERS_63, "%64,%65,%66,%67", "%68"

QUIRE_REGISTER_PRODUCTS(RegisterProduct, "1", QUIRE_PRODUCTS_OF_64)
QUIRE_REGISTER_PRODUCTS(RegisterProduct, "1", QUIRE_PRODUCTS_OF_128)
QUIRE_REGISTER_PRODUCTS(RegisterRowsProduct, "0", QUIRE_PRODUCTS_OF_64)
QUIRE_REGISTER_PRODUCTS(RegisterRowsProduct, "0", QUIRE_PRODUCTS_OF_128)

#undef QUIRE_WARPGROUP_PRODUCTS
#undef QUIRE_WARPGROUP_PRODUCT
#undef QUIRE_REGISTER_PRODUCTS
#undef QUIRE_REGISTER_PRODUCT
#undef QUIRE_PRODUCTS_OF_64
#undef QUIRE_PRODUCTS_OF_128
#undef QUIRE_REGISTERS_3
#undef QUIRE_REGISTERS_7
#undef QUIRE_REGISTERS_15
#undef QUIRE_REGISTERS_31
#undef QUIRE_REGISTERS_63
#undef QUIRE_REGISTERS_127
#undef QUIRE_SUMS_1
#undef QUIRE_SUMS_2
#undef QUIRE_SUMS_4
#undef QUIRE_SUMS_8
#undef QUIRE_SUMS_16
#undef QUIRE_SUMS_32
#undef QUIRE_WARPGROUP_ASM

}  // namespace quire::cuda::ptx

#endif
