// Holds the attention kernel of prompts against the kernel of decoding. Mutants of the kernel are
// compiled with this (test_prompt_mutants.py): exits with 0 if they agree, 1 if not, 2 if the
// kernel did what no GPU allows.
#include "cuda/attention/prompt.cuh"
#include "prompt_comparison.h"

namespace {

using namespace quire;
using namespace quire::cuda;

template <int kHeadSize, int kWarps, int kTiles>
Partials run_prompt(const PagedAttentionParams& p, int blocks_at_once) {
  using Shape = PromptShape<bf16, kHeadSize, kWarps, kTiles>;
  return run<kHeadSize, Shape::kColumns>(attention_prompt_kernel<bf16, kHeadSize, kWarps, kTiles>,
                                         Shape::kThreads, Shape::kSharedBytes, p, blocks_at_once);
}

}  // namespace

const auto kOptions = {Options{0, false, 0.f}, Options{45, true, 3.f}, Options{530, true, 0.f}};

int main() {
  const int of_64 = compare<64>(kOptions, run_prompt<64, 8, 4>);
  if (of_64 != 0) return of_64;
  return compare<128>(kOptions, run_prompt<128, 8, 4>, run_prompt<128, 8, 2>,
                      run_prompt<128, 4, 2>);
}
