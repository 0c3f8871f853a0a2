#include "cpu/isa.h"

#include <cstdint>
#include <stdexcept>

#if defined(QUIRE_X86)
#include <cpuid.h>
#endif

namespace quire::cpu {
namespace {

#if defined(QUIRE_X86)
bool has(std::uint32_t bits, int position) {
  return (bits >> position & 1) != 0;
}

// What the processor can do, and the operating system saves of it. Not by __builtin_cpu_supports,
// which asks the compiler's runtime library: that of `zig c++`, which wheels are built with,
// answers no to everything.
struct CpuFeatures {
  bool avx2 = false;         // with fma and f16c
  bool avx512 = false;       // f, bw, cd, dq and vl
  bool avx512_bf16 = false;  // and vnni

  CpuFeatures() {
    std::uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return;
    const bool os_saves = has(ecx, 27), avx = has(ecx, 28), fma = has(ecx, 12), f16c = has(ecx, 29);
    if (!os_saves || !avx || !fma || !f16c) return;
    std::uint32_t saved, saved_high;
    __asm__("xgetbv" : "=a"(saved), "=d"(saved_high) : "c"(0));
    constexpr std::uint32_t ymm = 0x06, zmm = 0xE6;
    if ((saved & ymm) != ymm || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return;
    avx2 = has(ebx, 5);
    avx512 = avx2 && (saved & zmm) == zmm && has(ebx, 16) && has(ebx, 17) && has(ebx, 28) &&
             has(ebx, 30) && has(ebx, 31);
    const bool vnni = has(ecx, 11);
    if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0) return;
    avx512_bf16 = avx512 && vnni && has(eax, 5);
  }
};
#endif

std::vector<const KernelTable*> probe() {
  std::vector<const KernelTable*> tables;
#if defined(QUIRE_X86)
  const CpuFeatures cpu;
  if (cpu.avx512_bf16) tables.push_back(&avx512_bf16::kernel_table());
  if (cpu.avx512) tables.push_back(&avx512::kernel_table());
  if (cpu.avx2) tables.push_back(&avx2::kernel_table());
#endif
  tables.push_back(&scalar::kernel_table());
  return tables;
}

}  // namespace

const std::vector<const KernelTable*>& available_kernel_tables() {
  static const std::vector<const KernelTable*> tables = probe();
  return tables;
}

const KernelTable& find_kernel_table(const std::string& name) {
  std::string choices;
  for (const KernelTable* table : available_kernel_tables()) {
    if (name == table->name) return *table;
    choices += choices.empty() ? "" : ", ";
    choices += table->name;
  }
  throw std::invalid_argument("isa: must be one of " + choices + " on this machine, got '" + name +
                              "'");
}

}  // namespace quire::cpu
