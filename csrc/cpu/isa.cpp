#include "cpu/isa.h"

#include <stdexcept>

namespace quire::cpu {
namespace {

std::vector<const KernelTable*> probe() {
  std::vector<const KernelTable*> tables;
#if defined(QUIRE_X86)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  // Every processor with the one has the other so far, but they are separate bits.
  if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
    tables.push_back(&avx512_bf16::kernel_table());
  if (avx512) tables.push_back(&avx512::kernel_table());
  if (avx2) tables.push_back(&avx2::kernel_table());
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
