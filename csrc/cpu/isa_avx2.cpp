// AVX2, FMA and F16C. See isa_scalar.cpp.
#define QUIRE_ISA avx2
#define QUIRE_ISA_NAME "avx2"

#include "cpu/kernels/simd_avx2.h"
//
#include "cpu/kernels/table.h"
