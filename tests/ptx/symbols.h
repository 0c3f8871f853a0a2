// Names of functions by their addresses, from the symbol table of the file that holds them.
#pragma once

#include <string>

namespace ptx {

// The mangled name of a function of this process, static ones too.
//
// Throws std::runtime_error if its file has no symbol for it: it must not be stripped.
std::string name_of_function(const void* function);

}  // namespace ptx
