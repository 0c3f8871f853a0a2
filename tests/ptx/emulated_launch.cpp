// Puts the interpreter into the place of the emulator's fibers: a build of the kernels for the
// emulator finds the PTX of what it launches by the kernel's name.
// QUIRE_PTX names the folder of modules; without it kernels run as fibers.
#include <cstdlib>
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

  bool has_warpgroups() override { return uses_warpgroups && machine().has_warpgroups(); }

  void allocated(void* begin, size_t bytes, bool is_pinned) override {
    ptx::global_memory().allocated(begin, bytes, is_pinned);
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

  bool uses_warpgroups = true;

  ~Interpreter() override { emu::other_machine = nullptr; }

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

}  // namespace

namespace ptx {

Machine& emulated_machine() {
  if (interpreter == nullptr) throw std::runtime_error("QUIRE_PTX: must name a folder");
  return interpreter->machine();
}

bool use_warpgroups(bool are_used) {
  emulated_machine();
  interpreter->uses_warpgroups = are_used;
  return interpreter->has_warpgroups();
}

}  // namespace ptx
