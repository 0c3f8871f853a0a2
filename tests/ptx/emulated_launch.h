// The interpreter in the emulator's place.
#pragma once

#include "machine.h"

namespace ptx {

// Runs what the emulated build launches. Throws std::runtime_error if QUIRE_PTX is not set.
Machine& emulated_machine();

// Whether operations may choose products of warpgroups, from now on, where the modules have them.
// Returns whether they may. Throws as above.
bool use_warpgroups(bool are_used);

}  // namespace ptx
