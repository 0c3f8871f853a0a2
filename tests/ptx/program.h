// A kernel of a PTX module, decoded: registers are numbers, constants are registers that keep their
// value, labels are places in a list of instructions.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptx {

constexpr int kWarpSize = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

// A kernel did what PTX does not allow or leaves undefined; the message names the act, the
// instruction and the thread.
class KernelError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The text is none that is understood here.
class DecodeError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Types of PTX. Those of untyped bits (.b32) are those of unsigned numbers.
enum class Type : uint8_t {
  kU8,
  kS8,
  kU16,
  kS16,
  kF16,
  kBf16,
  kU32,
  kS32,
  kF32,
  kU64,
  kS64,
  kF64,
  kPred,
  kNone
};

// Bytes of a value; 4 of a predicate, which holds a bit for each lane.
int size_of(Type type);

class Warp;
struct Instruction;

// Performs an instruction for `lanes` of a warp.
using Handler = void (*)(Warp& warp, const Instruction& instruction, uint32_t lanes);

struct Instruction {
  // What the warp has to do beside performing it.
  enum class Kind : uint8_t {
    kPlain,
    kBranch,        // to `target`, by the lanes of the guard
    kExit,          // of the lanes of the guard
    kBlockBarrier,  // waits for the block
    kAligned,       // by all lanes of the warp together
    kCollective,    // by the lanes that the last operand names
  };

  static constexpr int kMaxOperands = 16;

  Handler run = nullptr;
  Kind kind = Kind::kPlain;
  bool is_guarded = false;
  bool guard_is_negated = false;
  uint16_t guard = 0;
  int target = 0;

  // Registers: the first `num_written` are written, the others read.
  uint8_t num_written = 0;
  uint8_t num_operands = 0;
  uint16_t operands[kMaxOperands] = {};
  // Those that a product of a warpgroup adds to while the instructions behind it go on.
  std::vector<uint16_t> sums;

  Type type = Type::kNone;
  Type from = Type::kNone;  // of the operand of a conversion
  int64_t offset = 0;       // of an address
  int vector = 1;           // elements that a load or store moves
  int detail = 0;           // what else the operation has to know, as its handler defines it

  std::string name;    // of the operation, as "ld.global.u32"
  std::string text;    // whole
  std::string source;  // file and line, where the module has them
};

struct Register {
  std::string name;
  Type type;
  // Of a register that is never written: the same in all lanes, or one of PTX's special ones.
  bool is_constant = false;
  uint64_t value = 0;
};

struct Parameter {
  size_t offset;
  size_t bytes;
};

struct Program {
  std::string name;
  std::vector<Parameter> parameters;
  size_t parameter_bytes = 0;
  size_t static_shared_bytes = 0;  // before which dynamic shared memory begins
  std::vector<Register> registers;
  std::vector<Instruction> instructions;
  // griddepcontrol.wait is one of them: what comes before it may run beside the kernel before.
  bool awaits_earlier = false;
  bool has_products = false;  // of warpgroups
  // Races are looked for in units of the narrowest access to shared memory, in bytes.
  unsigned granule = 16;
};

}  // namespace ptx
