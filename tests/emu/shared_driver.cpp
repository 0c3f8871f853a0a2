// Prints what kernels ask for when they are launched: a part of a kernel's name, as it is written,
// and bytes of shared memory.
#include <cstdio>
#include <initializer_list>
#include <string>

#include "cuda/attention/latent.cuh"
#include "cuda/attention/mma_launch.cuh"
#include "cuda/attention/prompt.cuh"
#include "cuda/attention/warpgroup_shape.cuh"
#include "cuda/linear/int8_tile.cuh"
#include "cuda/linear/warpgroup_tile.cuh"
#include "cuda/linear/weight_only_tile.cuh"
#include "cuda/linear/weight_only_warpgroups.cuh"

namespace {

using namespace quire::cuda;

template <typename Cached, int kHeadSize, int kColumnTiles, int kStages>
void print_one() {
  for (const char* type : {"bf16", "f16"}) {
    std::printf("attention_mma_kernel<%s, %s, %d, %d, %d>\t%d\n", type,
                sizeof(Cached) == 1 ? "e4m3" : type, kHeadSize, kColumnTiles, kStages,
                MmaShape<Cached, kHeadSize, kColumnTiles, kStages>::kSharedBytes);
  }
}

template <typename Cached, int... kHeadSizes>
void print_attention() {
  const auto print_stages = [](auto head_size, auto columns) {
    constexpr int kMost = most_stages<Cached, head_size>();
    print_one<Cached, head_size, columns, kMost>();
    print_one<Cached, head_size, columns, kMost - 1>();
  };
  (print_stages(std::integral_constant<int, kHeadSizes>(), std::integral_constant<int, 1>()), ...);
  (print_stages(std::integral_constant<int, kHeadSizes>(), std::integral_constant<int, 2>()), ...);
}

template <int kHeadSize, int kWarps, int kTiles>
void print_prompt() {
  for (const char* type : {"bf16", "f16"}) {
    for (const char* kernel : {"prompt", "shared"}) {
      std::printf("attention_%s_kernel<%s, %d, %d, %d>\t%d\n", kernel, type, kHeadSize, kWarps,
                  kTiles, PromptShape<bf16, kHeadSize, kWarps, kTiles>::kSharedBytes);
    }
  }
}

template <int kGroups, int kStages>
void print_latent() {
  for (const char* type : {"bf16", "f16"}) {
    std::printf("attention_latent_kernel<%s, %d, %d>\t%d\n", type, kGroups, kStages,
                LatentShape<bf16, kGroups, kStages>::kSharedBytes);
  }
}

template <int kHeadSize>
void print_warpgroup_prompt() {
  for (const char* type : {"bf16", "f16"}) {
    for (const char* kernel : {"prompt", "shared"}) {
      std::printf("warpgroup_%s_kernel<%s, %d>\t%d\n", kernel, type, kHeadSize,
                  WarpgroupPromptShape<bf16, kHeadSize>::kSharedBytes);
    }
  }
}

template <typename T, int kFeatures, int kRows, int kFeatureWarps, int kRowWarps, int kStages>
void print_linear(LinearShape<T, kFeatures, kRows, kFeatureWarps, kRowWarps, kStages> shape,
                  const char* type) {
  char name[64];
  std::snprintf(name, sizeof name, "LinearShape<%s, %d, %d, %d, %d, %d>", type, kFeatures, kRows,
                kFeatureWarps, kRowWarps, kStages);
  std::printf("kernel<%s\t%d\n", name, shape.kSharedBytes);
}

template <typename T, int kFeatures, int kRows, int kStages, int kBlocks, int kInFlight,
          int kLevels>
void print_warpgroups(
    WarpgroupShape<T, kFeatures, kRows, kStages, kBlocks, kInFlight, kLevels> shape,
    const char* type) {
  std::printf("WarpgroupShape<%s, %d, %d, %d, %d, %d, %d>\t%d\n", type, kFeatures, kRows, kStages,
              kBlocks, kInFlight, kLevels, shape.kSharedBytes);
}

// Of a layer over weights of 8 or 4 bits with tiles of a shape.
template <typename Shape>
void print_weight_only(const char* shape, const char* type, std::initializer_list<int> numbers) {
  std::string name = std::string(shape) + "<" + type;
  for (const int number : numbers) name += ", " + std::to_string(number);
  name += ">";
  std::printf("WeightOnlyShape<%s, 8>\t%d\n", name.c_str(),
              WeightOnlyShape<Shape, 8>::kSharedBytes);
  std::printf("WeightOnlyShape<%s, 4>\t%d\n", name.c_str(),
              WeightOnlyShape<Shape, 4>::kSharedBytes);
  std::printf("Float8Shape<%s>\t%d\n", name.c_str(), Float8Shape<Shape>::kSharedBytes);
}

template <typename T>
void print_weight_only(const char* type) {
  print_weight_only<StreamedRowsOf8<T>>("StreamedShape", type, {8, 8});
  print_weight_only<StreamedRowsOf32<T>>("StreamedShape", type, {32, 6});
  print_weight_only<WholeRowsOf64<T>>("LinearShape", type, {64, 64, 4, 1, 4});
  print_weight_only<DequantisedRowsOf64<T>>("WarpgroupShape", type, {128, 64, 6, 2, 1, 0});
  print_weight_only<DequantisedRowsOf128<T>>("WarpgroupShape", type, {128, 128, 8, 1, 1, 0});
  print_weight_only<DequantisedPartsOf128<T>>("WarpgroupShape", type, {128, 128, 6, 1, 1, 1});
}

template <typename T>
void print_warpgroups(const char* type) {
  print_warpgroups(SmallRowsOf32<T>(), type);
  print_warpgroups(SmallRowsOf64<T>(), type);
  print_warpgroups(WideRowsOf64<T>(), type);
  print_warpgroups(DeepRowsOf64<T>(), type);
  print_warpgroups(WideRowsOf128<T>(), type);
  print_warpgroups(PartsOfRowsOf128<T>(), type);
  print_warpgroups(PartsOfRowsOf64<T>(), type);
  std::printf("WidestRowsOf256<%s>\t%d\n", type, WidestRowsOf256<T>::kSharedBytes);
}

template <typename T>
void print_linear(const char* type) {
  print_linear(RowsOf8<T>(), type);
  print_linear(RowsOf16<T>(), type);
  print_linear(RowsOf32<T>(), type);
  print_linear(RowsOf64<T>(), type);
  print_linear(RowsOf128<T>(), type);
}

template <int kPanels, int kRowTiles>
void print_int8() {
  std::printf("Int8Shape<%d, %d>\t%d\n", kPanels, kRowTiles,
              Int8Shape<kPanels, kRowTiles>::kSharedBytes);
}

}  // namespace

int main() {
  print_attention<bf16, 64, 80, 96, 112, 128, 192, 256>();
  print_attention<e4m3, 64, 80, 96, 112, 128, 192, 256>();
  print_prompt<64, 8, 4>();
  print_prompt<128, 8, 4>();
  print_prompt<128, 8, 2>();
  print_prompt<128, 4, 2>();
  print_latent<1, 2>();
  print_latent<1, 4>();
  print_latent<2, 2>();
  print_latent<2, 3>();
  print_warpgroup_prompt<64>();
  print_warpgroup_prompt<128>();
  print_linear<bf16>("bf16");
  print_linear<f16>("f16");
  print_linear<float>("float");
  print_warpgroups<bf16>("bf16");
  print_warpgroups<f16>("f16");
  print_weight_only<bf16>("bf16");
  print_weight_only<f16>("f16");
  print_int8<1, 1>();
  print_int8<1, 2>();
  print_int8<1, 4>();
  print_int8<2, 8>();
}
