// From the text of a kernel to its program.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "module.h"
#include "operands.h"
#include "operation.h"

namespace ptx {
namespace {

class Decoder {
 public:
  Decoder(const Module& module, const Entry& entry) : module_(module), entry_(entry) {
    program_.name = entry.name;
  }

  Program decode() {
    operands_.add_parameters(entry_.parameters);
    for (const SharedVariable& each : module_.shared()) operands_.add_shared(each);
    read_body();
    for (Instruction& each : program_.instructions) {
      if (each.kind == Instruction::Kind::kBranch) each.target = labels_.at(label_of(each));
    }
    operands_.place_dynamic_shared();
    return std::move(program_);
  }

 private:
  static std::string label_of(const Instruction& branch) {
    return branch.text.substr(branch.text.rfind('$'));
  }

  void read_body() {
    const std::string& body = entry_.body;
    size_t at = 0;
    for (;;) {
      while (at < body.size() && (is_space(body[at]) || body[at] == '{' || body[at] == '}')) ++at;
      if (at >= body.size()) return;
      if (body.compare(at, 4, ".loc") == 0) {
        const size_t end = body.find('\n', at);
        read_location(body.substr(at + 4, end - at - 4));
        at = end;
        continue;
      }
      const size_t end = body.find_first_of(":;", at);
      if (end == std::string::npos) throw DecodeError("a statement has no end");
      if (body[end] == ':' && body[at] == '$') {
        labels_[body.substr(at, end - at)] = static_cast<int>(program_.instructions.size());
        at = end + 1;
        continue;
      }
      // The name of a cache hint holds colons.
      const size_t stop = body.find(';', at);
      read_statement(trimmed(body.substr(at, stop - at)));
      at = stop + 1;
    }
  }

  // "2 91 5, function_name $L, inlined_at 1 302 9": a file and a line, and those of the call where
  // a function stands inline. Functions of one instruction are named by their calls.
  void read_location(const std::string& text) {
    const std::string inlined = "inlined_at";
    const size_t call = text.find(inlined);
    const std::string own = place(text);
    if (own.empty()) return;
    const bool is_wrapper = own.rfind("cuda/ptx.h:", 0) == 0 && call != std::string::npos;
    source_ = is_wrapper ? place(text.substr(call + inlined.size())) : own;
  }

  // The file and line of "2 91 5", as "cuda/ptx.h:91"; empty if that is no place of a source.
  std::string place(const std::string& text) const {
    char* rest = nullptr;
    const long file = std::strtol(text.c_str(), &rest, 10);
    const long line = std::strtol(rest, nullptr, 10);
    return line == 0 ? "" : module_.file(static_cast<int>(file)) + ":" + std::to_string(line);
  }

  void read_statement(const std::string& text) {
    if (text.rfind(".pragma", 0) == 0) return;
    if (text.rfind(".reg", 0) == 0) return operands_.add_registers(text);
    if (text.rfind(".shared", 0) == 0) {
      for (const SharedVariable& each : shared_variables(text)) operands_.add_shared(each);
      return;
    }
    try {
      add_instruction(text);
    } catch (const DecodeError& error) {
      throw DecodeError(std::string(error.what()) + ": " + text + " (" + source_ + ")");
    }
  }

  void push(Instruction* instruction, uint16_t number) {
    if (instruction->num_operands == Instruction::kMaxOperands)
      throw DecodeError("too many operands");
    instruction->operands[instruction->num_operands++] = number;
  }

  // "[%rd1+-8]"
  void push_address(Instruction* instruction, const std::string& text, Type type) {
    std::string inside = trimmed(text.substr(1, text.size() - 2));
    const size_t plus = inside.find('+');
    if (plus != std::string::npos) {
      instruction->offset = std::strtoll(inside.c_str() + plus + 1, nullptr, 0);
      inside = trimmed(inside.substr(0, plus));
    }
    push(instruction, operands_.find(inside, type));
  }

  // "{%r1, %r2}" or one; returns how many.
  int push_vector(Instruction* instruction, const std::string& text, Type type) {
    if (text[0] != '{') {
      push(instruction, operands_.find(text, type));
      return 1;
    }
    const std::vector<std::string> parts = split(text.substr(1, text.size() - 2), ',');
    for (const std::string& part : parts) push(instruction, operands_.find(part, type));
    return static_cast<int>(parts.size());
  }

  void add_instruction(const std::string& whole) {
    Instruction instruction;
    instruction.text = whole;
    instruction.source = source_;
    std::string text = whole;
    if (text[0] == '@') {
      const size_t space = text.find_first_of(" \t");
      instruction.is_guarded = true;
      instruction.guard_is_negated = text[1] == '!';
      const size_t from = instruction.guard_is_negated ? 2 : 1;
      instruction.guard = operands_.find(text.substr(from, space - from), Type::kPred);
      text = trimmed(text.substr(space));
    }
    const size_t space = std::min(text.find_first_of(" \t\n{"), text.size());
    instruction.name = text.substr(0, space);
    Operation operation;
    operation.parts = split(instruction.name, '.');
    operation.operands = split(text.substr(space), ',');
    instruction.type = type_named(operation.parts.back());
    if (instruction.name == "griddepcontrol.wait") program_.awaits_earlier = true;
    read_operands(operation, &instruction);
    program_.instructions.push_back(instruction);
  }

  void read_operands(const Operation& operation, Instruction* instruction) {
    const std::string& base = operation.base();
    if (base == "bra") {
      instruction->kind = Instruction::Kind::kBranch;
    } else if (base == "ret" || base == "exit") {
      instruction->kind = Instruction::Kind::kExit;
    } else if (instruction->name == "bar.sync" && operation.operands[0] == "0") {
      instruction->kind = Instruction::Kind::kBlockBarrier;
    } else if (base == "ld" || base == "st") {
      read_transfer(operation, instruction);
    } else if (base == "cvt") {
      read_conversion(operation, instruction);
    } else if (base == "cvta" && instruction->name == "cvta.to.global.u64") {
      // Generic addresses are those of global memory.
      Operation move = operation;
      move.parts = {"mov", "u64"};
      read_simple(move, find_logic(move, Type::kU64), instruction);
    } else if (base == "mov" && operation.operands.back() == "%globaltimer") {
      Operation clock = operation;
      clock.operands.pop_back();
      read_simple(clock, find_clock(), instruction);
    } else if (instruction->name.rfind("wgmma.mma_async", 0) == 0) {
      read_product(operation, find_product(operation, instruction), instruction);
    } else {
      read_simple(operation, find_simple(operation, instruction), instruction);
    }
  }

  // {d0, ...}, a or {a0, ...}, b, whether it adds, and numbers that `find_product` knows.
  void read_product(const Operation& operation, const Simple& simple, Instruction* instruction) {
    instruction->run = simple.run;
    program_.has_products = true;
    const std::string& sums = operation.operands[0];
    const std::vector<std::string> names = split(sums.substr(1, sums.size() - 2), ',');
    if (names.size() != simple.signature.written.size()) throw DecodeError("a number of operands");
    for (const std::string& each : names)
      instruction->sums.push_back(operands_.find(each, Type::kF32));
    for (size_t i = 0; i < simple.signature.read.size(); ++i)
      push_vector(instruction, operation.operands[i + 1], simple.signature.read[i]);
  }

  static Simple find_simple(const Operation& operation, Instruction* instruction) {
    Simple found = find_copy(instruction->name, instruction);
    if (found.run == nullptr) found = find_matrix(instruction->name, instruction);
    if (found.run == nullptr) found = find_product(operation, instruction);
    if (found.run == nullptr) found = find_collective(operation, instruction->type, instruction);
    if (found.run == nullptr) found = find_atomic(operation, instruction->type);
    if (found.run == nullptr) found = find_logic(operation, instruction->type);
    if (found.run == nullptr) found = find_integer(operation, instruction->type);
    if (found.run == nullptr) found = find_float(operation, instruction->type);
    if (found.run == nullptr) found = find_packed(operation);
    if (found.run == nullptr) throw DecodeError("an operation that is not understood here");
    return found;
  }

  void read_simple(const Operation& operation, const Simple& simple, Instruction* instruction) {
    instruction->run = simple.run;
    std::vector<std::string> texts;
    for (const std::string& each : operation.operands) {
      const bool is_vector = each[0] == '{';
      const std::string inside = is_vector ? each.substr(1, each.size() - 2) : each;
      for (const std::string& part : split(inside, is_vector ? ',' : '|')) texts.push_back(part);
    }
    const Signature& signature = simple.signature;
    const size_t written = signature.written.size();
    if (texts.size() != written + signature.read.size()) throw DecodeError("a number of operands");
    for (size_t i = 0; i < texts.size(); ++i) {
      const Type type = i < written ? signature.written[i] : signature.read[i - written];
      if (texts[i][0] == '[') {
        push_address(instruction, texts[i], type);
      } else {
        push(instruction, operands_.find(texts[i], type));
      }
    }
    instruction->num_written = static_cast<uint8_t>(written);
    if (operation.has("shared") && (operation.base() == "ldmatrix" || operation.base() == "cp"))
      note_granule(16);
    if (operation.has("shared") && operation.base() == "atom") note_granule(4);
  }

  void note_granule(int bytes) {
    program_.granule = std::min(program_.granule, static_cast<unsigned>(bytes));
  }

  void read_transfer(const Operation& operation, Instruction* instruction) {
    const bool is_load = operation.base() == "ld";
    instruction->run = is_load ? find_load(operation) : find_store(operation);
    if (instruction->run == nullptr) throw DecodeError("a space or hint that is not understood");
    const Type address = operation.has("shared") ? Type::kU32 : Type::kU64;
    const std::string& values = operation.operands[is_load ? 0 : 1];
    const std::string& place = operation.operands[is_load ? 1 : 0];
    if (!is_load) push_address(instruction, place, address);
    const int first = instruction->num_operands;
    const bool is_register = operands_.is_register(values) || values[0] == '{';
    instruction->vector =
        push_vector(instruction, values, is_register ? Type::kNone : instruction->type);
    if (is_load) {
      instruction->num_written = instruction->num_operands;
      push_address(instruction, place, address);
    }
    // All registers of a vector are of one size, in `detail`.
    instruction->detail = operands_.size_of_register(instruction->operands[first]);
    for (int i = 0; i < instruction->vector; ++i) {
      const int size = operands_.size_of_register(instruction->operands[first + i]);
      if (size != instruction->detail || size < size_of(instruction->type))
        throw DecodeError("registers of sizes that are not understood");
    }
    if (operation.has("shared") || !(operation.has("global") || operation.has("param")))
      note_granule(size_of(instruction->type) * instruction->vector);
  }

  void read_conversion(const Operation& operation, Instruction* instruction) {
    instruction->run = find_conversion(operation);
    if (instruction->run == nullptr) throw DecodeError("a conversion that is not understood");
    for (size_t i = 0; i < operation.operands.size(); ++i) {
      const bool is_register = operands_.is_register(operation.operands[i]);
      // Integers may be in a register that is wider than they are.
      const std::string& name =
          i == 0 ? operation.parts[operation.parts.size() - 2] : operation.parts.back();
      const bool is_integer = name[0] == 'u' || name[0] == 's';
      push(instruction, operands_.find(operation.operands[i],
                                       is_register && is_integer ? Type::kNone : type_named(name)));
    }
    instruction->num_written = 1;
    instruction->detail = operands_.size_of_register(instruction->operands[1]) |
                          operands_.size_of_register(instruction->operands[0]) << 8;
  }

  const Module& module_;
  const Entry& entry_;
  Program program_;
  Operands operands_{program_};
  std::string source_;
  std::map<std::string, int> labels_;
};

}  // namespace

Program decode(const Module& module, const Entry& entry) {
  return Decoder(module, entry).decode();
}

}  // namespace ptx
