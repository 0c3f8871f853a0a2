// Prints which pipelines attention takes on the device that is played: bytes of a cached element,
// elements of a head, columns of a block, stages, blocks of a multiprocessor, bytes of a block.
#include <cstdio>

#include "cuda/attention/latent_launch.cuh"

namespace {

using namespace quire::cuda;

template <typename Cached, int kHeadSize, int kColumnTiles>
void print() {
  const auto& chosen = MmaLauncher<bf16, Cached, kHeadSize, kColumnTiles>::chosen();
  std::printf("%d %d %d %d %d %d\n", int(sizeof(Cached)), kHeadSize, 8 * kColumnTiles,
              chosen.stages, chosen.blocks, chosen.shared_bytes);
}

template <int kGroups>
void print_latent() {
  using Launcher = LatentLauncher<bf16, kGroups>;
  const auto& chosen = Launcher::chosen();
  std::printf("2 %d %d %d %d %d\n", kLatentKeySize, Launcher::kColumns, chosen.stages,
              chosen.blocks, chosen.shared_bytes);
}

template <typename Cached, int... kHeadSizes>
void print_all() {
  (print<Cached, kHeadSizes, 1>(), ...);
}

}  // namespace

int main() {
  print_all<bf16, 64, 80, 96, 112, 128, 192, 256>();
  print_all<e4m3, 64, 80, 96, 112, 128, 192, 256>();
  print<bf16, 64, 2>();
  print<bf16, 96, 2>();
  print<bf16, 128, 2>();
  print<e4m3, 128, 2>();
  print_latent<1>();
  print_latent<2>();
}
