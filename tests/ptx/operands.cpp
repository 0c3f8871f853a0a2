#include "operands.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <regex>

namespace ptx {

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

namespace {

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

}  // namespace

void Operands::add_parameters(const std::string& text) {
  static const std::regex declaration(
      R"(\.param\s+(\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(\[(\d+)\])?)");
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

void Operands::add_shared(const SharedVariable& variable) {
  if (variable.bytes == 0) {
    shared_[variable.name] = kDynamic;
    dynamic_alignments_[variable.name] = variable.alignment;
    return;
  }
  const size_t offset = round_up(program_.static_shared_bytes, variable.alignment);
  shared_[variable.name] = offset;
  program_.static_shared_bytes = offset + variable.bytes;
}

void Operands::add_registers(const std::string& text) {
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
    for (long i = 0; i < count; ++i) add_register({name.substr(0, many) + std::to_string(i), type});
  }
}

uint16_t Operands::add_register(const Register& added) {
  if (program_.registers.size() > 0xffff) throw DecodeError("too many registers");
  const auto number = static_cast<uint16_t>(program_.registers.size());
  program_.registers.push_back(added);
  if (!added.is_constant || added.name[0] == '%') numbers_[added.name] = number;
  return number;
}

uint16_t Operands::find(const std::string& text, Type type) {
  const auto found = numbers_.find(text);
  if (found == numbers_.end()) {
    // What nothing declares is one of PTX's own, or a constant.
    return text[0] == '%' ? add_register({text, Type::kU32, true}) : find_constant(text, type);
  }
  const Type own = program_.registers[found->second].type;
  if (type != Type::kNone && size_of(own) != size_of(type))
    throw DecodeError("a register of another size, " + text);
  if (type != Type::kNone && (own == Type::kPred) != (type == Type::kPred))
    throw DecodeError("a predicate among values, " + text);
  return found->second;
}

uint16_t Operands::find_constant(const std::string& text, Type type) {
  const auto key = std::make_pair(text, type);
  const auto known = constants_.find(key);
  if (known != constants_.end()) return known->second;
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
  const uint16_t number = add_register(constant);
  constants_[key] = number;
  if (is_dynamic) {
    dynamic_.push_back(number);
    dynamic_alignment_ = std::max(dynamic_alignment_, dynamic_alignments_.at(text));
  }
  return number;
}

void Operands::place_dynamic_shared() {
  program_.static_shared_bytes = round_up(program_.static_shared_bytes, dynamic_alignment_);
  for (const uint16_t number : dynamic_)
    program_.registers[number].value = program_.static_shared_bytes;
}

}  // namespace ptx
