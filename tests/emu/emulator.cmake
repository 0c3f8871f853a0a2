# Compiles csrc/cuda and csrc/seed as C++ against the emulator, into _C.
file(GLOB_RECURSE emulated_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/csrc/*.cu")
# GCC 12 and Clang know nothing of `#pragma unroll` in a file that they take for C++.
set_source_files_properties(${emulated_sources} PROPERTIES
  LANGUAGE CXX COMPILE_OPTIONS "$<IF:$<BOOL:${QUIRE_SANITIZE}>,-O1,-O2>;-Wno-unknown-pragmas")
# The interpreter of PTX, which runs kernels in the emulator's place where QUIRE_PTX names a folder of modules.
file(GLOB interpreter_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/ptx/*.cpp")
set_source_files_properties(${interpreter_sources} PROPERTIES
  COMPILE_OPTIONS "$<IF:$<BOOL:${QUIRE_SANITIZE}>,-O1,-O3>")
target_sources(_C PRIVATE
  ${emulated_sources}
  ${interpreter_sources}
  cuda/peers/bindings.cpp
  seed/bindings.cpp
  seed/checks.cpp
  "${CMAKE_SOURCE_DIR}/tests/emu/fiber.cpp"
  "${CMAKE_SOURCE_DIR}/tests/emu/machine.cpp"
  "${CMAKE_SOURCE_DIR}/tests/emu/runtime_memory.cpp"
  "${CMAKE_SOURCE_DIR}/tests/emu/stream_capture.cpp")
target_include_directories(_C PRIVATE
  "${CMAKE_SOURCE_DIR}/tests/emu" "${CMAKE_SOURCE_DIR}/tests/emu/include")
target_compile_definitions(_C PRIVATE QUIRE_EMULATED_CUDA=1)
