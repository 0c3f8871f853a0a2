// From the text of a kernel to its program.
#include <cctype>
#include <cstdlib>
#include <map>
#include <regex>

#include "module.h"
#include "operation.h"

namespace ptx {
namespace {

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

std::string trimmed(const std::string& text) {
  size_t begin = 0;
  size_t end = text.size();
  while (begin < end && is_space(text[begin])) ++begin;
  while (end > begin && is_space(text[end - 1])) --end;
  return text.substr(begin, end - begin);
}

// Splits at `separator` where no bracket is open.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (const char c : text) {
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == separator && depth == 0) {
      parts.push_back(trimmed(part));
      part.clear();
    } else {
      part += c;
    }
  }
  if (!trimmed(part).empty()) parts.push_back(trimmed(part));
  return parts;
}

size_t round_up(size_t size, size_t alignment) {
  return alignment == 0 ? size : (size + alignment - 1) / alignment * alignment;
}

uint64_t bits_of_constant(const std::string& text, Type type) {
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'd'))
    return std::strtoull(text.c_str() + 2, nullptr, 16);
  if (type == Type::kF32 || type == Type::kF64) throw DecodeError("a constant of type " + text);
  return text[0] == '-' ? static_cast<uint64_t>(std::strtoll(text.c_str(), nullptr, 0))
                        : std::strtoull(text.c_str(), nullptr, 0);
}

class Decoder {
 public:
  Decoder(const Module& module, const Entry& entry) : module_(module), entry_(entry) {
    program_.name = entry.name;
  }

  Program decode() {
    add_parameters();
    for (const SharedVariable& each : module_.shared()) add_shared(each);
    read_body();
    for (Instruction& each : program_.instructions) {
      if (each.kind == Instruction::Kind::kBranch) each.target = labels_.at(label_of(each));
    }
    // Dynamic memory follows the variables.
    program_.static_shared_bytes = round_up(program_.static_shared_bytes, kDynamicAlignment);
    for (const uint16_t number : dynamic_)
      program_.registers[number].value = program_.static_shared_bytes;
    return std::move(program_);
  }

 private:
  static constexpr size_t kDynamicAlignment = 128;

  static std::string label_of(const Instruction& branch) {
    return branch.text.substr(branch.text.rfind('$'));
  }

  void add_parameters() {
    static const std::regex declaration(
        R"(\.param\s+(\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(\[(\d+)\])?)");
    const std::string& text = entry_.parameters;
    for (std::sregex_iterator i(text.begin(), text.end(), declaration), end; i != end; ++i) {
      const std::smatch& match = *i;
      const auto size = static_cast<size_t>(size_of(type_named(match[3])));
      const size_t bytes =
          match[5].matched ? size * std::strtoull(match[6].str().c_str(), nullptr, 10) : size;
      const size_t alignment =
          match[1].matched ? std::strtoull(match[2].str().c_str(), nullptr, 10) : size;
      const size_t offset = round_up(program_.parameter_bytes, alignment);
      parameters_[match[4]] = offset;
      program_.parameters.push_back({offset, bytes});
      program_.parameter_bytes = offset + bytes;
    }
  }

  void add_shared(const SharedVariable& variable) {
    if (variable.bytes == 0) {
      shared_[variable.name] = kDynamic;
      return;
    }
    const size_t offset = round_up(program_.static_shared_bytes, variable.alignment);
    shared_[variable.name] = offset;
    program_.static_shared_bytes = offset + variable.bytes;
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

  // "2 91 5, function_name ...": a file and a line.
  void read_location(const std::string& text) {
    char* rest = nullptr;
    const long file = std::strtol(text.c_str(), &rest, 10);
    const long line = std::strtol(rest, nullptr, 10);
    if (line != 0) source_ = module_.file(static_cast<int>(file)) + ":" + std::to_string(line);
  }

  void read_statement(const std::string& text) {
    if (text.rfind(".pragma", 0) == 0) return;
    if (text.rfind(".reg", 0) == 0) return add_registers(text);
    if (text.rfind(".shared", 0) == 0) {
      for (const SharedVariable& each : shared_variables(text)) add_shared(each);
      return;
    }
    try {
      add_instruction(text);
    } catch (const DecodeError& error) {
      throw DecodeError(std::string(error.what()) + ": " + text + " (" + source_ + ")");
    }
  }

  // ".reg .b32 %r<44>" or ".reg .pred %p, %q"
  void add_registers(const std::string& text) {
    const size_t dot = text.find('.', 1);
    const size_t space = text.find_first_of(" \t", dot);
    const Type type = type_named(text.substr(dot + 1, space - dot - 1));
    for (const std::string& name : split(text.substr(space), ',')) {
      const size_t many = name.find('<');
      if (many == std::string::npos) {
        add_register({name, type});
        continue;
      }
      const long count = std::strtol(name.c_str() + many + 1, nullptr, 10);
      for (long i = 0; i < count; ++i)
        add_register({name.substr(0, many) + std::to_string(i), type});
    }
  }

  uint16_t add_register(const Register& added) {
    if (program_.registers.size() > 0xffff) throw DecodeError("too many registers");
    const auto number = static_cast<uint16_t>(program_.registers.size());
    program_.registers.push_back(added);
    if (!added.is_constant || added.name[0] == '%') numbers_[added.name] = number;
    return number;
  }

  // The register of an operand that is read as `type`; kNone takes a register's own.
  uint16_t operand(const std::string& text, Type type) {
    const auto found = numbers_.find(text);
    if (found != numbers_.end()) {
      const int size = size_of(program_.registers[found->second].type);
      if (type != Type::kNone && size != size_of(type))
        throw DecodeError("a register of another size, " + text);
      const bool is_predicate = program_.registers[found->second].type == Type::kPred;
      if (type != Type::kNone && is_predicate != (type == Type::kPred))
        throw DecodeError("a predicate among values, " + text);
      return found->second;
    }
    if (text[0] == '%') return add_register({text, Type::kU32, true});  // a special one
    Register constant{text, type, true};
    const auto shared = shared_.find(text);
    const auto parameter = parameters_.find(text);
    const bool is_dynamic = shared != shared_.end() && shared->second == kDynamic;
    if (parameter != parameters_.end()) {
      constant.value = parameter->second;
    } else if (shared != shared_.end()) {
      constant.value = is_dynamic ? 0 : shared->second;
    } else {
      const bool is_number = std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-';
      if (!is_number) throw DecodeError("an unknown name, " + text);
      constant.value = bits_of_constant(text, type);
    }
    const auto key = std::make_pair(text, type);
    const auto known = constants_.find(key);
    if (known != constants_.end()) return known->second;
    const uint16_t number = add_register(constant);
    constants_[key] = number;
    if (is_dynamic) dynamic_.push_back(number);
    return number;
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
    push(instruction, operand(inside, type));
  }

  // "{%r1, %r2}" or one; returns how many.
  int push_vector(Instruction* instruction, const std::string& text, Type type) {
    if (text[0] != '{') {
      push(instruction, operand(text, type));
      return 1;
    }
    const std::vector<std::string> parts = split(text.substr(1, text.size() - 2), ',');
    for (const std::string& part : parts) push(instruction, operand(part, type));
    return static_cast<int>(parts.size());
  }

  int size_of_register(uint16_t number) const { return size_of(program_.registers[number].type); }

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
      instruction.guard = operand(text.substr(from, space - from), Type::kPred);
      text = trimmed(text.substr(space));
    }
    const size_t space = std::min(text.find_first_of(" \t\n{"), text.size());
    instruction.name = text.substr(0, space);
    Operation operation;
    operation.parts = split(instruction.name, '.');
    operation.operands = split(text.substr(space), ',');
    instruction.type = type_named(operation.parts.back());
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
    } else {
      read_simple(operation, find_simple(operation, instruction), instruction);
    }
  }

  static Simple find_simple(const Operation& operation, Instruction* instruction) {
    Simple found = find_copy(instruction->name, instruction);
    if (found.run == nullptr) found = find_matrix(instruction->name, instruction);
    if (found.run == nullptr) found = find_collective(operation, instruction->type, instruction);
    if (found.run == nullptr) found = find_atomic(operation, instruction->type);
    if (found.run == nullptr) found = find_logic(operation, instruction->type);
    if (found.run == nullptr) found = find_integer(operation, instruction->type);
    if (found.run == nullptr) found = find_float(operation, instruction->type);
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
        push(instruction, operand(texts[i], type));
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
    const bool is_register = numbers_.count(values) != 0 || values[0] == '{';
    instruction->vector =
        push_vector(instruction, values, is_register ? Type::kNone : instruction->type);
    if (is_load) {
      instruction->num_written = instruction->num_operands;
      push_address(instruction, place, address);
    }
    // All registers of a vector are of one size, in `detail`.
    instruction->detail = size_of_register(instruction->operands[first]);
    for (int i = 0; i < instruction->vector; ++i) {
      const int size = size_of_register(instruction->operands[first + i]);
      if (size != instruction->detail || size < size_of(instruction->type))
        throw DecodeError("registers of sizes that are not understood");
    }
    if (operation.has("shared")) note_granule(size_of(instruction->type) * instruction->vector);
  }

  void read_conversion(const Operation& operation, Instruction* instruction) {
    instruction->run = find_conversion(operation);
    if (instruction->run == nullptr) throw DecodeError("a conversion that is not understood");
    for (size_t i = 0; i < operation.operands.size(); ++i) {
      const bool is_register = numbers_.count(operation.operands[i]) != 0;
      // Integers may be in a register that is wider than they are.
      const std::string& name =
          i == 0 ? operation.parts[operation.parts.size() - 2] : operation.parts.back();
      const bool is_integer = name[0] == 'u' || name[0] == 's';
      push(instruction, operand(operation.operands[i],
                                is_register && is_integer ? Type::kNone : type_named(name)));
    }
    instruction->num_written = 1;
    instruction->detail = size_of_register(instruction->operands[1]) |
                          size_of_register(instruction->operands[0]) << 8;
  }

  static constexpr size_t kDynamic = ~size_t{0};

  const Module& module_;
  const Entry& entry_;
  Program program_;
  std::string source_;
  std::map<std::string, int> labels_;
  std::map<std::string, size_t> parameters_;
  std::map<std::string, size_t> shared_;
  std::map<std::string, uint16_t> numbers_;
  std::map<std::pair<std::string, Type>, uint16_t> constants_;
  std::vector<uint16_t> dynamic_;  // constants that are the address of dynamic shared memory
};

}  // namespace

Program decode(const Module& module, const Entry& entry) {
  return Decoder(module, entry).decode();
}

}  // namespace ptx
