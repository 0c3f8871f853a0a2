// What a worker asks the CUDA runtime for beside kernels. It goes through the runtime of these
// kernels: torch has one of its own, where an error that is left behind ends the next operation.
#include <thread>

#include "cuda/host.h"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

__global__ void empty_kernel() {
  begin_kernel();
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The text of an error, "" for success; the runtime forgets it.
std::string text_of(cudaError_t error) {
  if (error == cudaSuccess) return "";
  cudaGetLastError();
  return cudaGetErrorString(error);
}

}  // namespace

std::string driver_problem() {
  int driver = 0;
  if (const std::string error = text_of(cudaDriverGetVersion(&driver)); !error.empty()) {
    return error;
  }
  // Within a major version any driver runs the machine code of any compiler; PTX may need a newer
  // one, which a launch shows.
  if (driver / 1000 >= CUDART_VERSION / 1000) return "";
  return "a driver for CUDA " + version_text(driver) + ", and kernels built with CUDA " +
         version_text(CUDART_VERSION);
}

std::string launch_problem(int device) {
  std::string problem;
  // The device is a thread's: to set the caller's back would make a context on the one before.
  std::thread([&] {
    problem = text_of(cudaSetDevice(device));
    if (!problem.empty()) return;
    try {
      launch(empty_kernel, 1, kWarpSize, 0, nullptr);
      problem = text_of(cudaStreamSynchronize(nullptr));
    } catch (const std::runtime_error& failure) {
      cudaGetLastError();
      problem = failure.what();
    }
  }).join();
  return problem;
}

std::string pin_host_memory(uintptr_t address, size_t bytes) {
  return text_of(cudaHostRegister(reinterpret_cast<void*>(address), bytes, 0));
}

void unpin_host_memory(uintptr_t address) {
  text_of(cudaHostUnregister(reinterpret_cast<void*>(address)));
}

}  // namespace quire::cuda
