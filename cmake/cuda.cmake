# Compiles csrc/cuda and csrc/seed into _C, where a GPU is visible and nvcc is found. QUIRE_CUDA=1 asks for it on any
# machine that has nvcc, QUIRE_CUDA=0 refuses: variables of the environment.
set(wanted "$ENV{QUIRE_CUDA}")
if(wanted STREQUAL "")
  file(GLOB gpus /dev/nvidia[0-9]*)
  if(NOT gpus)
    execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE status OUTPUT_VARIABLE gpus ERROR_QUIET)
  endif()
  if(NOT gpus MATCHES "nvidia|GPU ")
    message(STATUS "CUDA kernels: not built, no GPU is visible (QUIRE_CUDA=1 builds them all the same)")
    return()
  endif()
elseif(NOT wanted)
  message(STATUS "CUDA kernels: not built, QUIRE_CUDA is ${wanted}")
  return()
endif()

# nvcc is often installed without being on PATH. Where there is none it may come from the wheels that pyproject.toml pins.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(QUIRE_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin
    PATHS "${Python_SITELIB}/nvidia/cu13/bin")
  if(QUIRE_NVCC)
    set(CMAKE_CUDA_COMPILER "${QUIRE_NVCC}")
  endif()
endif()
# In the wheels the runtime lies in lib, and nvcc looks for it in lib64.
if(CMAKE_CUDA_COMPILER)
  get_filename_component(cuda_lib "${CMAKE_CUDA_COMPILER}/../../lib" ABSOLUTE)
  if(EXISTS "${cuda_lib}/libcudart_static.a")
    set(ENV{LIBRARY_PATH} "${cuda_lib}")
    target_link_directories(_C PRIVATE "${cuda_lib}")
  endif()
endif()
# Those whose machine code is tested (tests/machine_code); sm_86 runs that of sm_80. CUDAARCHS names others, as with CMake.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  if(DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES "$ENV{CUDAARCHS}")
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90a-real 100-real 120)
  endif()
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(wanted)
    message(FATAL_ERROR "QUIRE_CUDA: ${wanted} needs nvcc, and there is none here")
  endif()
  message(STATUS "CUDA kernels: not built, there is no nvcc")
  return()
endif()

# cudart is linked statically, so the module imports on machines without CUDA.
enable_language(CUDA)
set_target_properties(_C PROPERTIES
  CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CUDA_STANDARD 17
  CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static)
file(GLOB_RECURSE QUIRE_CUDA_SOURCES CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/csrc/*.cu")
target_sources(_C PRIVATE ${QUIRE_CUDA_SOURCES} cuda/peers/bindings.cpp seed/bindings.cpp seed/checks.cpp)
# No contraction, as on the CPU: where a fused multiply-add is meant, it is written.
target_compile_options(_C PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo;-fmad=false>)
target_compile_definitions(_C PRIVATE QUIRE_WITH_CUDA=1)
# Instructions of this capability alone, which no other device runs.
if("${CMAKE_CUDA_ARCHITECTURES}" MATCHES "90a")
  target_compile_definitions(_C PRIVATE QUIRE_SM90A=1)
endif()
