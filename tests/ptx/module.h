// The text of a PTX module, cut into kernels, which are decoded when they are first asked for.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "program.h"

namespace ptx {

// A variable in shared memory.
struct SharedVariable {
  std::string name;
  size_t alignment;
  size_t bytes;  // 0 if the launch decides
};

// The text of one kernel.
struct Entry {
  std::string name;
  std::string parameters;
  std::string body;
};

class Module {
 public:
  // Throws DecodeError.
  explicit Module(const std::string& text);

  // As "sm_90a"; empty if it names none.
  const std::string& target() const { return target_; }
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<SharedVariable>& shared() const { return shared_; }
  // The last two parts of the path of a file, by the number that .loc gives it.
  const std::string& file(int number) const;

 private:
  std::string target_;
  std::vector<Entry> entries_;
  std::vector<SharedVariable> shared_;  // of all kernels
  std::map<int, std::string> files_;
};

// Decodes a kernel. Throws DecodeError that names the statement.
Program decode(const Module& module, const Entry& entry);

// A mangled name in which nvcc's and GCC's names of an unnamed namespace are the same.
std::string normalised(const std::string& name);

// The variables of `.shared` in a statement; empty if it declares none.
std::vector<SharedVariable> shared_variables(const std::string& statement);

// The size of a type as in ".u32".
Type type_named(const std::string& name);

}  // namespace ptx
