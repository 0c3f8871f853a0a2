// Compiles the checks of all operations, once: kernels include the same headers without this
// definition and see the parameters alone.
#define QUIRE_COMPILE_CHECKS

#include "ops/attention.h"
#include "ops/cache.h"
#include "ops/experts.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/logits.h"
#include "ops/rotary.h"
