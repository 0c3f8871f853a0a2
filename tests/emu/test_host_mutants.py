"""Bugs planted in what a worker asks the CUDA runtime for at its start: each must be noticed."""

from tests.emu.planted_bugs import PlantedBugs

# What is wrong: the text of host.cu that is replaced, and by what.
MUTANTS = {
    "an error left behind": (
        "  cudaGetLastError();\n  return cudaGetErrorString",
        "  return cudaGetErrorString",
    ),
    "a refused launch left behind": ("      cudaGetLastError();\n      problem", "      problem"),
    "errors passed over": ('if (error == cudaSuccess) return "";', 'return "";'),
    "an older driver taken": (
        "driver / 1000 >= CUDART_VERSION / 1000",
        "driver / 1000 + 1 >= CUDART_VERSION / 1000",
    ),
    "a newer driver refused": (
        "driver / 1000 >= CUDART_VERSION / 1000",
        "driver / 1000 == CUDART_VERSION / 1000",
    ),
    "minor versions compared": (
        "driver / 1000 >= CUDART_VERSION / 1000",
        "driver > CUDART_VERSION",
    ),
    "the compiler's version for the driver's": ("version_text(driver)", "version_text(13000)"),
    "minor versions in tens": ("version % 1000 / 10", "version % 1000"),
    "no driver taken for an old one": ("!error.empty()", "false"),
    "another device": ("cudaSetDevice(device)", "cudaSetDevice(0)"),
    "a launch on no device": ("if (!problem.empty()) return;", ""),
    "the caller's device": (
        "std::thread([&] {",
        "[](auto call) { call(); struct { void join() {} } done; return done; }([&] {",
    ),
    "no wait for the kernel": ("problem = text_of(cudaStreamSynchronize(nullptr));", ""),
    "no kernel": ("launch(empty_kernel, 1, kWarpSize, 0, nullptr);", ""),
    "a refusal in silence": ("problem = failure.what();", ""),
    "half of the memory pinned": ("(address), bytes, 0)", "(address), bytes / 2, 0)"),
    "memory that stays pinned": (
        "text_of(cudaHostUnregister(reinterpret_cast<void*>(address)));",
        "",
    ),
    "an error of memory that was not pinned": (
        "text_of(cudaHostUnregister(",
        "static_cast<void>(cudaHostUnregister(",
    ),
}


class TestHost(PlantedBugs):
    driver = "host_driver.cpp"
    kernel = ("host.cu",)
    mutants = MUTANTS
