// The kernels that the field began with, as functions of the Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace quire {

// Defines them; each calls `follow_stream` before it begins.
void bind_seed(pybind11::module_& module, void (*follow_stream)());

}  // namespace quire
