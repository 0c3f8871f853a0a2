// The names of a kernel's text: registers, constants, parameters and variables in shared memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "module.h"
#include "program.h"

namespace ptx {

bool is_space(char c);

// Without space at either end.
std::string trimmed(const std::string& text);

// Splits at `separator` where no bracket is open.
std::vector<std::string> split(const std::string& text, char separator);

// All methods throw DecodeError.
class Operands {
 public:
  // Registers, parameters and sizes go to the program.
  explicit Operands(Program& program) : program_(program) {}

  // Those of a kernel's declaration.
  void add_parameters(const std::string& text);
  void add_shared(const SharedVariable& variable);
  // ".reg .b32 %r<44>" or ".reg .pred %p, %q"
  void add_registers(const std::string& text);

  // The register of an operand that is read as `type`; kNone takes a register's own.
  uint16_t find(const std::string& text, Type type);

  bool is_register(const std::string& text) const { return numbers_.count(text) != 0; }
  int size_of_register(uint16_t number) const { return size_of(program_.registers[number].type); }

  // Once all is added: dynamic shared memory follows the variables.
  void place_dynamic_shared();

 private:
  static constexpr size_t kDynamic = ~size_t{0};

  uint16_t add_register(const Register& added);
  uint16_t find_constant(const std::string& text, Type type);

  Program& program_;
  std::map<std::string, size_t> parameters_;
  std::map<std::string, size_t> shared_;
  std::map<std::string, size_t> dynamic_alignments_;
  std::map<std::string, uint16_t> numbers_;
  std::map<std::pair<std::string, Type>, uint16_t> constants_;
  std::vector<uint16_t> dynamic_;  // constants that are the address of dynamic shared memory
  size_t dynamic_alignment_ = 128;
};

}  // namespace ptx
