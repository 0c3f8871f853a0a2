// Dense layers in int8 of this instruction set, beside linear_avx512.cpp so that both compile at
// once.
#define QUIRE_ISA avx512

#include "cpu/kernels/simd_avx512.h"
//
#include "cpu/kernels/linear_int8.h"
