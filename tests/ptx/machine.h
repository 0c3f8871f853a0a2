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

// That of a module.
struct Text {
  std::string ptx;
};

class Machine {
 public:
  explicit Machine(const Text& text);

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

  // Whether all modules it was made of are for sm_90a, which alone has products of warpgroups.
  bool has_warpgroups() const { return has_warpgroups_; }

  // Names of all kernels, normalised.
  std::vector<std::string> names() const;

  // The instructions of a kernel, one a line: number, how often warps have performed it, source,
  // text.
  std::string listing(const std::string& name);

  // Leaves an instruction of a kernel out of launches from now on; a negative number none.
  void leave_out(const std::string& name, int instruction);

  // Takes the kernels of another text in the place of those of the same names; an empty text puts
  // these back.
  void replace(const std::string& text);

  // What each kernel that was launched has done, as JSON.
  std::string report();

 private:
  struct Kernel {
    const Module* module;
    const Entry* entry;
    std::shared_ptr<Program> program;  // decoded when it is first wanted
    std::shared_ptr<Counters> counters;
    int left_out = -1;
  };

  void add(const std::string& text);
  Kernel& kernel(const std::string& name);

  std::vector<std::unique_ptr<Module>> modules_;
  std::map<std::string, Kernel> kernels_;
  std::map<std::string, Kernel> replaced_;
  bool has_warpgroups_ = true;
  uint32_t launches_ = 0;
};

}  // namespace ptx
