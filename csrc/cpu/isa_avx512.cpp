// AVX-512 of x86-64-v4. See isa_scalar.cpp.
#define QUIRE_ISA avx512
#define QUIRE_ISA_NAME "avx512"

#include "cpu/kernels/simd_avx512.h"
//
#include "cpu/kernels/table.h"
