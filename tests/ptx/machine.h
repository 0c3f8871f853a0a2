// The kernels of all modules of a folder, by name, and their launches.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "block.h"
#include "counters.h"
#include "module.h"

namespace ptx {

class Machine {
 public:
  // Reads each *.ptx of a folder. Throws DecodeError, std::runtime_error without any.
  explicit Machine(const std::string& folder);

  // Runs a kernel.
  //
  // Args:
  //   name: mangled, as GCC does it.
  //   arguments: where those of the kernel lie.
  //
  // Throws KernelError, DecodeError; std::runtime_error if there is no such kernel.
  void launch(const std::string& name, const void* const* arguments, Size grid, Size threads,
              size_t dynamic_shared_bytes, const Order& order);

  // Names of all kernels, normalised.
  std::vector<std::string> names() const;

  // The instructions of a kernel, one a line: its number and text.
  std::string listing(const std::string& name);

  // Leaves an instruction of a kernel out of launches from now on; a negative number none.
  void leave_out(const std::string& name, int instruction);

  // What each kernel that was launched has done, as JSON.
  std::string report();

 private:
  struct Kernel {
    const Module* module;
    const Entry* entry;
    std::unique_ptr<Program> program;  // decoded when it is first wanted
    std::unique_ptr<Counters> counters;
    int left_out = -1;
  };

  Kernel& kernel(const std::string& name);

  std::vector<std::unique_ptr<Module>> modules_;
  std::map<std::string, Kernel> kernels_;
  uint32_t launches_ = 0;
};

}  // namespace ptx
