#include "machine.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "global_memory.h"

namespace ptx {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Numbers of the blocks of a grid in the order in which they run.
std::vector<uint64_t> turns(const Size& grid, const Order& order) {
  std::vector<uint64_t> numbers(grid.count());
  std::iota(numbers.begin(), numbers.end(), uint64_t{0});
  if (order.is_reverse) std::reverse(numbers.begin(), numbers.end());
  if (order.is_shuffled) std::shuffle(numbers.begin(), numbers.end(), std::mt19937(order.seed));
  return numbers;
}

void nothing(Warp&, const Instruction&, uint32_t) {}

// A program without one of its instructions, but with its number.
Program without(const Program& program, int left_out) {
  Program changed = program;
  Instruction& instruction = changed.instructions[static_cast<size_t>(left_out)];
  instruction = Instruction{};
  instruction.run = nothing;
  return changed;
}

}  // namespace

Machine::Machine(const Text& text) {
  add(text.ptx);
}

Machine::Machine(const std::string& folder) {
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    if (each.path().extension() == ".ptx") add(read_file(each.path()));
  }
  if (kernels_.empty()) throw std::runtime_error("there are no kernels in " + folder);
}

void Machine::add(const std::string& text) {
  modules_.push_back(std::make_unique<Module>(text));
  has_warpgroups_ = has_warpgroups_ && modules_.back()->target() == "sm_90a";
  for (const Entry& entry : modules_.back()->entries()) {
    const std::string name = normalised(entry.name);
    const auto [place, is_new] =
        kernels_.emplace(name, Kernel{modules_.back().get(), &entry, {}, {}});
    // A template's instance may be in several modules; a kernel of a file may not be another's.
    if (!is_new && place->second.entry->name != entry.name)
      throw DecodeError("two kernels are named " + name);
  }
}

Machine::Kernel& Machine::kernel(const std::string& name) {
  const auto found = kernels_.find(normalised(name));
  if (found == kernels_.end()) throw std::runtime_error("no module has the kernel " + name);
  Kernel& kernel = found->second;
  if (kernel.program == nullptr) {
    kernel.program = std::make_unique<Program>(decode(*kernel.module, *kernel.entry));
    kernel.counters = std::make_unique<Counters>(kernel.program->instructions.size());
  }
  return kernel;
}

void Machine::launch(const std::string& name, const void* const* arguments, Size grid, Size threads,
                     size_t dynamic_shared_bytes, const Order& order) {
  Kernel& own = kernel(name);
  std::unique_ptr<Program> changed;
  if (own.left_out >= 0) changed = std::make_unique<Program>(without(*own.program, own.left_out));
  const Program& program = changed != nullptr ? *changed : *own.program;
  std::vector<std::byte> parameters(program.parameter_bytes);
  for (size_t i = 0; i < program.parameters.size(); ++i) {
    const Parameter& each = program.parameters[i];
    std::memcpy(&parameters[each.offset], arguments[i], each.bytes);
  }
  ++own.counters->launches;
  BlockOrder blocks(++launches_, threads.count());
  const Launch launch{program, std::move(parameters), grid,  threads, dynamic_shared_bytes,
                      order,   *own.counters,         blocks};
  Block block(launch);
  for (const uint64_t number : turns(grid, order)) {
    const Size index{static_cast<uint32_t>(number % grid.x),
                     static_cast<uint32_t>(number / grid.x % grid.y),
                     static_cast<uint32_t>(number / grid.x / grid.y)};
    block.run(index, static_cast<uint32_t>(number));
  }
}

std::vector<std::string> Machine::names() const {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : kernels_) names.push_back(name);
  return names;
}

std::string Machine::listing(const std::string& name) {
  std::ostringstream lines;
  const Kernel& own = kernel(name);
  for (size_t i = 0; i < own.program->instructions.size(); ++i) {
    const Instruction& each = own.program->instructions[i];
    lines << i << ' ' << own.counters->performed[i] << ' ' << each.source << ' ' << each.text
          << '\n';
  }
  return lines.str();
}

void Machine::leave_out(const std::string& name, int instruction) {
  int& left_out = kernel(name).left_out;
  if (left_out < 0) global_memory().keep();
  left_out = instruction;
  if (left_out < 0) global_memory().put_back();
}

void Machine::replace(const std::string& text) {
  if (text.empty()) {
    for (const auto& [name, kernel] : replaced_) kernels_[name] = kernel;
    replaced_.clear();
    global_memory().put_back();
    return;
  }
  global_memory().keep();
  modules_.push_back(std::make_unique<Module>(text));
  for (const Entry& entry : modules_.back()->entries()) {
    const std::string name = normalised(entry.name);
    replaced_[name] = kernels_[name];
    kernels_[name] = Kernel{modules_.back().get(), &entry, {}, {}};
  }
}

std::string Machine::report() {
  std::ostringstream json;
  json << '{';
  bool is_first = true;
  for (const auto& [name, kernel] : kernels_) {
    if (kernel.counters == nullptr || kernel.counters->launches == 0) continue;
    const Counters& counters = *kernel.counters;
    std::map<std::string, uint64_t> by_name;
    for (size_t i = 0; i < counters.performed.size(); ++i)
      by_name[kernel.program->instructions[i].name] += counters.performed[i];
    json << (is_first ? "" : ",") << "\n\"" << name << "\": {\"launches\": " << counters.launches
         << ", \"shared_wavefronts\": " << counters.shared_wavefronts
         << ", \"shared_ideal\": " << counters.shared_ideal
         << ", \"global_sectors\": " << counters.global_sectors
         << ", \"global_ideal\": " << counters.global_ideal
         << ", \"copied_bytes\": " << counters.copied_bytes << ", \"instructions\": {";
    bool is_first_name = true;
    for (const auto& [operation, count] : by_name) {
      if (count == 0) continue;
      json << (is_first_name ? "" : ", ") << '"' << operation << "\": " << count;
      is_first_name = false;
    }
    json << "}}";
    is_first = false;
  }
  json << "\n}\n";
  return json.str();
}

}  // namespace ptx
