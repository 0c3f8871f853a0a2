// Dense layers of this instruction set, beside isa_scalar.cpp so that both compile at once.
#define QUIRE_ISA scalar

#include "cpu/kernels/simd_scalar.h"
//
#include "cpu/kernels/linear.h"
