// Memory of peers and the sum that is made there, in the Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace quire {

// Defines them; operations call `follow_stream` before they begin.
void bind_peers(pybind11::module_& module, void (*follow_stream)());

}  // namespace quire
