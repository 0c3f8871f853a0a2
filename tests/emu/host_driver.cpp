// Asks host.cu of a runtime that refuses, as CUDA's does: an error stays behind until somebody
// takes it, and a device is a thread's. Mutants of host.cu are compiled with this
// (test_host_mutants.py): exits with 0 if all is as its comments have it, 1 if not.
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "cuda/host.h"
#include "cuda/launch.h"

namespace {

constexpr cudaError_t kNoDriver = cudaErrorInvalidDevice;

// The runtime: what it is to answer, and what it was asked for.
struct Runtime {
  int driver_version = CUDART_VERSION;
  cudaError_t driver_error = cudaSuccess;
  cudaError_t pin_error = cudaSuccess;
  cudaError_t kernel_error = cudaSuccess;  // which shows when the kernel is waited for
  bool refuses_launch = false;

  cudaError_t left_behind = cudaSuccess;
  size_t pinned_bytes = 0;
  int num_launches = 0;

  cudaError_t leave(cudaError_t error) {
    if (error != cudaSuccess) left_behind = error;
    return error;
  }
};

Runtime runtime;
thread_local int current_device = -1;

cudaError_t driver_version(int* version) {
  *version = runtime.driver_version;
  return runtime.leave(runtime.driver_error);
}

cudaError_t set_device(int device) {
  if (device > 1) return runtime.leave(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t take_error() {
  const cudaError_t error = runtime.left_behind;
  runtime.left_behind = cudaSuccess;
  return error;
}

cudaError_t wait_for_kernel() {
  return runtime.leave(runtime.num_launches > 0 ? runtime.kernel_error : cudaSuccess);
}

cudaError_t pin(size_t bytes) {
  if (runtime.pin_error == cudaSuccess) runtime.pinned_bytes = bytes;
  return runtime.leave(runtime.pin_error);
}

cudaError_t unpin() {
  if (runtime.pinned_bytes == 0) return runtime.leave(cudaErrorInvalidValue);
  runtime.pinned_bytes = 0;
  return cudaSuccess;
}

}  // namespace

namespace quire::cuda {

// A launch on the second device alone, which it may refuse.
template <typename... Args>
void launch_on_second(const Args&... args) {
  if (current_device != 1) throw std::runtime_error("a launch on another device");
  if (runtime.refuses_launch) check(runtime.leave(cudaErrorInvalidValue), "launch");
  launch(args...);
  ++runtime.num_launches;
}

}  // namespace quire::cuda

#define cudaDriverGetVersion(version) driver_version(version)
#define cudaSetDevice(device) set_device(device)
#define cudaGetLastError() take_error()
#define cudaStreamSynchronize(stream) wait_for_kernel()
#define cudaHostRegister(pointer, bytes, flags) pin(bytes)
#define cudaHostUnregister(pointer) unpin()
#define launch launch_on_second
#include "cuda/host.cu"
#undef launch

namespace {

using namespace quire::cuda;

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void require_nothing_left() {
  require(runtime.left_behind == cudaSuccess, "an error is left behind for the next operation");
}

void require_answer(const std::string& answer, const std::string& expected) {
  if (answer != expected) throw std::logic_error("\"" + answer + "\", not \"" + expected + "\"");
  require_nothing_left();
}

void old_drivers_are_named() {
  runtime = {};
  require_answer(driver_problem(), "");
  runtime.driver_version = CUDART_VERSION / 1000 * 1000;
  require_answer(driver_problem(), "");
  runtime.driver_version = CUDART_VERSION + 1010;
  require_answer(driver_problem(), "");
  runtime.driver_version = 12040;
  require_answer(driver_problem(), "a driver for CUDA 12.4, and kernels built with CUDA 13.0");
  runtime.driver_error = kNoDriver;
  require_answer(driver_problem(), cudaGetErrorString(kNoDriver));
}

void a_device_that_runs_nothing_is_named() {
  runtime = {};
  require_answer(launch_problem(1), "");
  require(runtime.num_launches == 1, "no kernel was launched");
  require(current_device == -1, "the caller's device has changed");
  require_answer(launch_problem(2), cudaGetErrorString(cudaErrorInvalidDevice));
  runtime.kernel_error = cudaErrorInvalidValue;
  require_answer(launch_problem(1), cudaGetErrorString(cudaErrorInvalidValue));
  runtime.refuses_launch = true;
  require_answer(launch_problem(1), "CUDA: launch: invalid argument");
}

void memory_that_cannot_be_pinned_is_named() {
  runtime = {};
  char memory[64];
  const auto address = reinterpret_cast<uintptr_t>(memory);
  require_answer(pin_host_memory(address, sizeof memory), "");
  require(runtime.pinned_bytes == sizeof memory, "not all of the memory is pinned");
  unpin_host_memory(address);
  require(runtime.pinned_bytes == 0, "the memory is still pinned");
  runtime.pin_error = cudaErrorMemoryAllocation;
  require_answer(pin_host_memory(address, sizeof memory), "out of memory");
  unpin_host_memory(address);
  require_nothing_left();
}

}  // namespace

int main() {
  try {
    old_drivers_are_named();
    a_device_that_runs_nothing_is_named();
    memory_that_cannot_be_pinned_is_named();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
