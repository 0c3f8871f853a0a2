// The floating-point environment of kernels: rounding to nearest even, denormal operands read as
// zero and denormal results written as zero, each with its sign. The dot product instructions for
// bf16 know no other; with it, fused multiply-adds of any instruction set give their bits.
#pragma once

namespace quire::cpu::QUIRE_ISA {
namespace {

// Sets that environment for the calling thread until it is destroyed. Does nothing on processors
// other than x86, which run none of the code that depends on it.
class FlushDenormals {
 public:
#if defined(QUIRE_X86)
  FlushDenormals() : before_(__builtin_ia32_stmxcsr()) { set(kMaskedExceptions | kDaz | kFtz); }
  ~FlushDenormals() { set(before_); }
#else
  FlushDenormals() {}
  ~FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

#if defined(QUIRE_X86)
 private:
  static constexpr unsigned kMaskedExceptions = 0x1f80;
  static constexpr unsigned kDaz = 0x0040;
  static constexpr unsigned kFtz = 0x8000;

  // The compiler must keep loads and stores of operands on their side of the change.
  static void set(unsigned mxcsr) {
    asm volatile("" ::: "memory");
    __builtin_ia32_ldmxcsr(mxcsr);
    asm volatile("" ::: "memory");
  }

  unsigned before_;
#endif
};

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
