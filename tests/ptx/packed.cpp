// Products and fused multiply-adds of two 16-bit floats at once.
#include "elementwise.h"
#include "fused.h"
#include "number_formats.h"

namespace ptx {
namespace {

struct OfF16 {
  static float read(uint32_t bits) { return from_f16(static_cast<uint16_t>(bits)); }
  static uint32_t rounded(float x) { return to_f16(x); }
};
struct OfBf16 {
  static float read(uint32_t bits) { return from_bf16(static_cast<uint16_t>(bits)); }
  static uint32_t rounded(float x) { return to_bf16(x); }
};

template <typename Format>
struct MultiplyAddPair {
  static uint32_t of(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
    for (const int shift : {0, 16}) {
      const float half = emu::fma_to_odd(Format::read(a >> shift), Format::read(b >> shift),
                                         Format::read(c >> shift));
      result |= Format::rounded(half) << shift;
    }
    return result;
  }
};
// Minus zero, when added, changes nothing.
template <typename Format>
struct MultiplyPair {
  static uint32_t of(uint32_t a, uint32_t b) {
    return MultiplyAddPair<Format>::of(a, b, 0x80008000);
  }
};

template <typename Format>
Simple find_of(const Operation& operation) {
  if (operation.base() == "mul")
    return make_binary<uint32_t, uint32_t, uint32_t, MultiplyPair<Format>>();
  if (operation.base() == "fma")
    return make_ternary<uint32_t, uint32_t, uint32_t, MultiplyAddPair<Format>>();
  return {};
}

}  // namespace

Simple find_packed(const Operation& operation) {
  if (operation.has("sat") || operation.has("ftz") || operation.has("relu")) return {};
  if (operation.has("f16x2")) return find_of<OfF16>(operation);
  if (operation.has("bf16x2")) return find_of<OfBf16>(operation);
  return {};
}

}  // namespace ptx
