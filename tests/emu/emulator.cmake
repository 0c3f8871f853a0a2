# Compiles csrc/cuda and csrc/seed as C++ against the emulator, into _C.
file(GLOB_RECURSE emulated_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/csrc/*.cu")
# GCC 12 and Clang know nothing of `#pragma unroll` in a file that they take for C++.
set_source_files_properties(${emulated_sources} PROPERTIES
  LANGUAGE CXX COMPILE_OPTIONS "$<IF:$<BOOL:${QUIRE_SANITIZE}>,-O1,-O2>;-Wno-unknown-pragmas")
target_sources(_C PRIVATE
  ${emulated_sources}
  seed/bindings.cpp
  "${CMAKE_SOURCE_DIR}/tests/emu/fiber.cpp"
  "${CMAKE_SOURCE_DIR}/tests/emu/machine.cpp")
target_include_directories(_C PRIVATE
  "${CMAKE_SOURCE_DIR}/tests/emu" "${CMAKE_SOURCE_DIR}/tests/emu/include")
target_compile_definitions(_C PRIVATE QUIRE_EMULATED_CUDA=1)
