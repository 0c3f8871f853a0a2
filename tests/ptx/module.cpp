#include "module.h"

#include <cctype>
#include <cstdlib>
#include <regex>

namespace ptx {
namespace {

// In the names of files, which are quoted, two slashes begin none.
std::string without_comments(const std::string& text) {
  std::string result;
  result.reserve(text.size());
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_quoted = !is_quoted;
    if (!is_quoted && text.compare(i, 2, "//") == 0) {
      while (i < text.size() && text[i] != '\n') ++i;
    }
    if (i < text.size()) result += text[i];
  }
  return result;
}

// The place of the brace that closes the one at `opened`.
size_t end_of_braces(const std::string& text, size_t opened) {
  int depth = 0;
  for (size_t at = opened; at < text.size(); ++at) {
    if (text[at] == '{') ++depth;
    if (text[at] == '}' && --depth == 0) return at;
  }
  throw DecodeError("a kernel has no end");
}

}  // namespace

int size_of(Type type) {
  switch (type) {
    case Type::kU8:
    case Type::kS8:
      return 1;
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBf16:
      return 2;
    case Type::kU32:
    case Type::kS32:
    case Type::kF32:
    case Type::kPred:
      return 4;
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
      return 8;
    case Type::kNone:
      return 0;
  }
  return 0;
}

Type type_named(const std::string& name) {
  static const std::map<std::string, Type> types = {
      {"b8", Type::kU8},     {"u8", Type::kU8},     {"s8", Type::kS8},     {"b16", Type::kU16},
      {"u16", Type::kU16},   {"s16", Type::kS16},   {"f16", Type::kF16},   {"bf16", Type::kBf16},
      {"b32", Type::kU32},   {"u32", Type::kU32},   {"s32", Type::kS32},   {"f32", Type::kF32},
      {"f16x2", Type::kU32}, {"b64", Type::kU64},   {"u64", Type::kU64},   {"s64", Type::kS64},
      {"f64", Type::kF64},   {"pred", Type::kPred}, {"e4m3x2", Type::kU16}};
  const auto found = types.find(name);
  return found == types.end() ? Type::kNone : found->second;
}

std::vector<SharedVariable> shared_variables(const std::string& statement) {
  static const std::regex declaration(
      R"(\.shared\s+\.align\s+(\d+)\s+\.(\w+)\s+([\w$]+)(\[(\d*)\])?)");
  std::vector<SharedVariable> found;
  for (std::sregex_iterator i(statement.begin(), statement.end(), declaration), end; i != end;
       ++i) {
    const std::smatch& match = *i;
    const auto size = static_cast<size_t>(size_of(type_named(match[2])));
    // "name[]" is as long as the launch wants it.
    const size_t count = match[4].matched ? std::strtoull(match[5].str().c_str(), nullptr, 10) : 1;
    found.push_back({match[3], std::strtoull(match[1].str().c_str(), nullptr, 10), size * count});
  }
  return found;
}

std::string normalised(const std::string& name) {
  const std::string key = "_GLOBAL__N_";
  std::string result = name;
  for (size_t at = result.find(key); at != std::string::npos; at = result.find(key, at)) {
    size_t digits = at;
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(result[digits - 1]))) --digits;
    // Digits of a name before this one end where a length that reaches behind the text would begin.
    size_t length = std::strtoull(result.substr(digits, at - digits).c_str(), nullptr, 10);
    while (length > result.size() - at) {
      ++digits;
      length = std::strtoull(result.substr(digits, at - digits).c_str(), nullptr, 10);
    }
    result.replace(digits, at - digits + length, "12_GLOBAL__N_1");
    at = digits + 14;
  }
  return result;
}

Module::Module(const std::string& with_comments) {
  const std::string text = without_comments(with_comments);
  static const std::regex target(R"(\.target\s+(\w+))");
  std::smatch named;
  const std::string head = text.substr(0, text.find(".entry"));
  if (std::regex_search(head, named, target)) target_ = named[1];
  size_t end = 0;
  for (;;) {
    const size_t begin = text.find(".entry", end);
    const std::string between =
        text.substr(end, begin == std::string::npos ? std::string::npos : begin - end);
    for (const SharedVariable& each : shared_variables(between)) shared_.push_back(each);
    if (begin == std::string::npos) break;
    const size_t opened = text.find('(', begin);
    const size_t closed = text.find(')', opened);
    const size_t body = text.find('{', closed);
    end = end_of_braces(text, body);
    size_t name = begin + 6;
    while (std::isspace(static_cast<unsigned char>(text[name]))) ++name;
    entries_.push_back({text.substr(name, opened - name),
                        text.substr(opened + 1, closed - opened - 1),
                        text.substr(body + 1, end - body - 1)});
  }
  // .file 3 "/a/path"
  for (size_t at = text.find("\n\t.file\t"); at != std::string::npos;
       at = text.find("\n\t.file\t", at + 1)) {
    char* after_number = nullptr;
    const long number = std::strtol(text.c_str() + at + 8, &after_number, 10);
    const size_t opened = text.find('"', static_cast<size_t>(after_number - text.c_str()));
    const std::string path = text.substr(opened + 1, text.find('"', opened + 1) - opened - 1);
    size_t from = path.rfind('/');
    if (from != std::string::npos && from > 0) from = path.rfind('/', from - 1);
    files_[static_cast<int>(number)] = from == std::string::npos ? path : path.substr(from + 1);
  }
}

const std::string& Module::file(int number) const {
  static const std::string none;
  const auto found = files_.find(number);
  return found == files_.end() ? none : found->second;
}

}  // namespace ptx
