// Dense layers in int8 of this instruction set, beside linear_scalar.cpp so that both compile at
// once.
#define QUIRE_ISA scalar

#include "cpu/kernels/simd_scalar.h"
//
#include "cpu/kernels/linear_int8.h"
