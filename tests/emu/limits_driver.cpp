// Starts a kernel with as many bytes of dynamic shared memory as its argument states: exits with 0
// if the device that is played allows it.
#include <cstdio>
#include <cstdlib>

#include "cuda/launch.h"

namespace {

void kernel() {
  quire::cuda::begin_kernel();
}

}  // namespace

int main(int, char** arguments) {
  try {
    quire::cuda::launch(kernel, 1, 32, std::strtoul(arguments[1], nullptr, 10), nullptr);
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
