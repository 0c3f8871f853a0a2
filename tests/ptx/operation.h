// The name of an operation and its operands as text, which handlers are chosen by.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "program.h"

namespace ptx {

struct Operation {
  std::vector<std::string> parts;  // of its name: "ld", "global", "u32"
  std::vector<std::string> operands;

  const std::string& base() const { return parts[0]; }
  bool has(const std::string& part) const {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  }
};

// What type each operand has, which constants are read and registers checked by. kNone: any, as it
// is in its register.
struct Signature {
  std::vector<Type> written;
  std::vector<Type> read;
};

// An operation that works on each lane alone.
struct Simple {
  Handler run = nullptr;  // null if the operation is another's
  Signature signature;
};

Simple find_integer(const Operation& operation, Type type);
Simple find_float(const Operation& operation, Type type);
// Of pairs of 16-bit floats.
Simple find_packed(const Operation& operation);
// Moves, comparisons and selections.
Simple find_logic(const Operation& operation, Type type);

// Conversions read and write registers of any width.
Handler find_conversion(const Operation& operation);

// Those of a warp; sets the kind of the instruction.
Simple find_collective(const Operation& operation, Type type, Instruction* instruction);

// Loads and stores, whose registers may be wider than what is moved.
Handler find_load(const Operation& operation);
Handler find_store(const Operation& operation);
Simple find_atomic(const Operation& operation, Type type);
// Of one register.
Simple find_clock();

// By their whole name: cp.async, fences and bar.warp.sync; ldmatrix, movmatrix and mma.
Simple find_copy(const std::string& name, Instruction* instruction);
Simple find_matrix(const std::string& name, Instruction* instruction);

// Products of warpgroups and what orders them; what mma_async writes are its sums. Throws
// DecodeError.
Simple find_product(const Operation& operation, Instruction* instruction);

}  // namespace ptx
