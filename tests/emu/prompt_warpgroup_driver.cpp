// Holds the attention kernel of prompts on warpgroups against the kernel of decoding. Mutants of
// the kernel are compiled with this (test_prompt_warpgroup_mutants.py): exits with 0 if they agree,
// 1 if not, 2 if the kernel did what no GPU allows.
#include "cuda/attention/prompt_warpgroup.cuh"
#include "prompt_comparison.h"

namespace {

using namespace quire;
using namespace quire::cuda;

template <int kHeadSize>
Partials run_prompt(const PagedAttentionParams& p, int blocks_at_once) {
  using Shape = WarpgroupPromptShape<bf16, kHeadSize>;
  return run<kHeadSize, Shape::kColumns>(warpgroup_prompt_kernel<bf16, kHeadSize>, Shape::kThreads,
                                         Shape::kSharedBytes, p, blocks_at_once);
}

}  // namespace

// Slopes and caps apart, since either asks for more care. With a window of 360 a stage begins
// behind it for some columns of a warpgroup, with 450 there are stages of which only the last tile
// is an item's.
const auto kOptions = {Options{0, false, 0.f}, Options{45, true, 3.f},   Options{0, true, 0.f},
                       Options{0, false, 3.f}, Options{360, false, 0.f}, Options{450, false, 0.f}};

int main() {
  const int of_64 = compare<64>(kOptions, run_prompt<64>);
  if (of_64 != 0) return of_64;
  return compare<128>(kOptions, run_prompt<128>);
}
