// Dense layers of this instruction set, beside isa_avx512_bf16.cpp so that both compile at once.
#define QUIRE_ISA avx512_bf16

#include "cpu/kernels/simd_avx512.h"
//
#include "cpu/kernels/linear.h"
