// Dense layers in int8 of this instruction set, beside linear_avx2.cpp so that both compile at
// once.
#define QUIRE_ISA avx2

#include "cpu/kernels/simd_avx2.h"
//
#include "cpu/kernels/linear_int8.h"
