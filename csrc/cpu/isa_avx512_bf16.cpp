// AVX-512 of x86-64-v4 with dot products of BF16 and int8. See isa_scalar.cpp.
#define QUIRE_ISA avx512_bf16
#define QUIRE_ISA_NAME "avx512_bf16"

#include "cpu/kernels/simd_avx512.h"
//
#include "cpu/kernels/attention_dot_int8.h"
//
#define QUIRE_BF16_TILE Bf16DotTile
#define QUIRE_BF16_INT8_TILE Int8DotTile
#include "cpu/kernels/table.h"
