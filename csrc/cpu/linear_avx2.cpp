// Dense layers of this instruction set, beside isa_avx2.cpp so that both compile at once.
#define QUIRE_ISA avx2

#include "cpu/kernels/simd_avx2.h"
//
#include "cpu/kernels/linear.h"
