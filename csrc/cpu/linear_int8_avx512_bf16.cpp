// Dense layers in int8 of this instruction set, beside linear_avx512_bf16.cpp so that both compile
// at once.
#define QUIRE_ISA avx512_bf16

#include "cpu/kernels/simd_avx512.h"
//
#include "cpu/kernels/linear_int8.h"
