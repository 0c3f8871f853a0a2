// Puts the interpreter into the place of the emulator's fibers: a build of the kernels for the
// emulator finds the PTX of what it launches by the kernel's name.
//
// Environment:
//   QUIRE_PTX: folder of modules; without it kernels run as fibers.
//   QUIRE_PTX_REPORT: file to which what was counted goes when the process ends.
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "global_memory.h"
#include "machine.h"
#include "other_machine.h"
#include "symbols.h"

namespace {

ptx::Size size_of(dim3 size) {
  return {size.x, size.y, size.z};
}

class Interpreter : public emu::OtherMachine {
 public:
  explicit Interpreter(const std::string& folder) : folder_(folder) {}

  void launch(const void* kernel, const void* const* arguments, dim3 grid, dim3 block,
              size_t shared_bytes) override {
    ptx::Order order;
    order.is_reverse = emu::Machine::order == emu::Order::kReverse;
    order.is_shuffled = emu::Machine::order == emu::Order::kShuffled;
    order.copies_are_early = emu::Machine::order == emu::Order::kForward;
    order.seed = emu::Machine::seed;
    machine().launch(ptx::name_of_function(kernel), arguments, size_of(grid), size_of(block),
                     shared_bytes, order);
  }

  void allocated(void* begin, size_t bytes) override {
    ptx::global_memory().allocated(begin, bytes);
  }
  void freed(void* begin) override { ptx::global_memory().freed(begin); }
  void written(const void* begin, size_t bytes) override {
    ptx::global_memory().written(begin, bytes);
  }

  // Read when it is first wanted: not in processes that only import the module.
  ptx::Machine& machine() {
    if (machine_ == nullptr) machine_ = std::make_unique<ptx::Machine>(folder_);
    return *machine_;
  }

  ~Interpreter() override {
    const char* report = std::getenv("QUIRE_PTX_REPORT");
    if (machine_ != nullptr && report != nullptr) std::ofstream(report) << machine_->report();
    emu::other_machine = nullptr;
  }

 private:
  std::string folder_;
  std::unique_ptr<ptx::Machine> machine_;
};

std::unique_ptr<Interpreter> interpreter = [] {
  const char* folder = std::getenv("QUIRE_PTX");
  auto made = folder == nullptr ? nullptr : std::make_unique<Interpreter>(folder);
  emu::other_machine = made.get();
  return made;
}();

std::string shown;

// Text that stays until the next call.
template <typename F>
const char* show(F&& text) {
  try {
    shown = text();
  } catch (const std::exception& error) {
    shown = std::string("error: ") + error.what();
  }
  return shown.c_str();
}

}  // namespace

// For Python's ctypes. Only with QUIRE_PTX.
#define QUIRE_EXPORTED extern "C" __attribute__((visibility("default")))

// The memory of the tensors that the next operation may touch; none: all memory.
QUIRE_EXPORTED void quire_ptx_set_tensors(const uint64_t* begins, const uint64_t* sizes,
                                          int count) {
  std::map<uint64_t, size_t> tensors;
  for (int i = 0; i < count; ++i) {
    size_t& size = tensors[begins[i]];
    if (sizes[i] > size) size = sizes[i];
  }
  ptx::global_memory().set_tensors(tensors);
}

// Names of all kernels, one a line.
QUIRE_EXPORTED const char* quire_ptx_names() {
  return show([] {
    std::string lines;
    for (const std::string& name : interpreter->machine().names()) lines += name + "\n";
    return lines;
  });
}

QUIRE_EXPORTED const char* quire_ptx_listing(const char* name) {
  return show([&] { return interpreter->machine().listing(name); });
}

QUIRE_EXPORTED const char* quire_ptx_report() {
  return show([] { return interpreter->machine().report(); });
}

QUIRE_EXPORTED void quire_ptx_leave_out(const char* name, int instruction) {
  interpreter->machine().leave_out(name, instruction);
}
