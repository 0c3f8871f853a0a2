// Operations of each lane alone: results for all lanes are kept where a lane is active.
#pragma once

#include "operation.h"
#include "warp.h"

namespace ptx {

template <typename D, typename F>
void write(Warp& warp, const Instruction& instruction, uint32_t lanes, F&& value_of) {
  D* const d = warp.values<D>(instruction.operands[0]);
  if (lanes == kAllLanes) {
    for (int lane = 0; lane < kWarpSize; ++lane) d[lane] = value_of(lane);
    return;
  }
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    d[lane] = value_of(lane);
  }
}

// d = F(a)
template <typename D, typename A, typename F>
void unary(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const A* const a = warp.values<A>(instruction.operands[1]);
  write<D>(warp, instruction, lanes, [&](int lane) { return F::of(a[lane]); });
}

// d = F(a, b)
template <typename D, typename A, typename B, typename F>
void binary(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const A* const a = warp.values<A>(instruction.operands[1]);
  const B* const b = warp.values<B>(instruction.operands[2]);
  write<D>(warp, instruction, lanes, [&](int lane) { return F::of(a[lane], b[lane]); });
}

// d = F(a, b, c)
template <typename D, typename A, typename C, typename F>
void ternary(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const A* const a = warp.values<A>(instruction.operands[1]);
  const A* const b = warp.values<A>(instruction.operands[2]);
  const C* const c = warp.values<C>(instruction.operands[3]);
  write<D>(warp, instruction, lanes, [&](int lane) { return F::of(a[lane], b[lane], c[lane]); });
}

template <typename T>
constexpr Type type_of();
template <>
constexpr Type type_of<uint8_t>() {
  return Type::kU8;
}
template <>
constexpr Type type_of<uint16_t>() {
  return Type::kU16;
}
template <>
constexpr Type type_of<int16_t>() {
  return Type::kS16;
}
template <>
constexpr Type type_of<uint32_t>() {
  return Type::kU32;
}
template <>
constexpr Type type_of<int32_t>() {
  return Type::kS32;
}
template <>
constexpr Type type_of<float>() {
  return Type::kF32;
}
template <>
constexpr Type type_of<uint64_t>() {
  return Type::kU64;
}
template <>
constexpr Type type_of<int64_t>() {
  return Type::kS64;
}
template <>
constexpr Type type_of<double>() {
  return Type::kF64;
}

template <typename D, typename A, typename F>
Simple make_unary() {
  return {unary<D, A, F>, {{type_of<D>()}, {type_of<A>()}}};
}

template <typename D, typename A, typename B, typename F>
Simple make_binary() {
  return {binary<D, A, B, F>, {{type_of<D>()}, {type_of<A>(), type_of<B>()}}};
}

template <typename D, typename A, typename C, typename F>
Simple make_ternary() {
  return {ternary<D, A, C, F>, {{type_of<D>()}, {type_of<A>(), type_of<A>(), type_of<C>()}}};
}

}  // namespace ptx
