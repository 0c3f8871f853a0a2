// Dense layers of this instruction set, beside isa_avx512.cpp so that both compile at once.
#define QUIRE_ISA avx512

#include "cpu/kernels/simd_avx512.h"
//
#include "cpu/kernels/linear.h"
