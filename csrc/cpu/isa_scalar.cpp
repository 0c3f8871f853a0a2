// The portable kernels. This file and its siblings compile the same text, each with its own flags.
// All of that text has internal linkage in a namespace of the ISA's name, and none of it uses
// inline functions or templates of the standard library: the linker keeps one copy of such a
// function for the whole program, and that copy may hold instructions which the machine does not
// have.
#define QUIRE_ISA scalar
#define QUIRE_ISA_NAME "scalar"

#include "cpu/kernels/simd_scalar.h"
//
#include "cpu/kernels/table.h"
