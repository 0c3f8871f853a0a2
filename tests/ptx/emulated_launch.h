// The interpreter in the emulator's place.
#pragma once

#include "machine.h"

namespace ptx {

// Runs what the emulated build launches. Throws std::runtime_error if QUIRE_PTX is not set.
Machine& emulated_machine();

}  // namespace ptx
