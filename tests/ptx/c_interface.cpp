// For Python's ctypes (tests/ptx/interpreter.py): what the emulated build launches, and single
// kernels of a text. Texts that are returned stay until the next call; those that begin with
// "error: " are errors.
#include <cstring>
#include <exception>
#include <map>
#include <string>

#include "emulated_launch.h"
#include "global_memory.h"
#include "machine.h"

#define QUIRE_EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

template <typename F>
const char* show(F&& text) {
  static std::string shown;
  try {
    shown = text();
  } catch (const std::exception& error) {
    shown = std::string("error: ") + error.what();
  }
  return shown.c_str();
}

}  // namespace

// The memory of the tensors that the next operations may touch, beside what their host code
// allocates; none: all memory.
QUIRE_EXPORTED void quire_ptx_set_tensors(const uint64_t* begins, const uint64_t* sizes,
                                          int count) {
  std::map<uint64_t, size_t> tensors;
  for (int i = 0; i < count; ++i) {
    size_t& size = tensors[begins[i]];
    if (sizes[i] > size) size = sizes[i];
  }
  ptx::global_memory().set_tensors(tensors);
}

// Device memory of which nothing is written.
QUIRE_EXPORTED void quire_ptx_allocated(void* begin, uint64_t bytes) {
  ptx::global_memory().allocated(begin, bytes, /*is_pinned=*/false);
}

QUIRE_EXPORTED void quire_ptx_freed(void* begin) {
  ptx::global_memory().freed(begin);
}

// Names of all kernels, one a line.
QUIRE_EXPORTED const char* quire_ptx_names() {
  return show([] {
    std::string lines;
    for (const std::string& name : ptx::emulated_machine().names()) lines += name + "\n";
    return lines;
  });
}

// A kernel's instructions, one a line: number, how often warps have performed it, source, text.
QUIRE_EXPORTED const char* quire_ptx_listing(const char* name) {
  return show([&] { return ptx::emulated_machine().listing(name); });
}

QUIRE_EXPORTED const char* quire_ptx_report() {
  return show([] { return ptx::emulated_machine().report(); });
}

// Leaves an instruction of a kernel out from now on; a negative number none.
QUIRE_EXPORTED const char* quire_ptx_leave_out(const char* name, int instruction) {
  return show([&] {
    ptx::emulated_machine().leave_out(name, instruction);
    return std::string();
  });
}

// Takes the kernels of a text in the place of those of the same names; an empty text puts these
// back.
QUIRE_EXPORTED const char* quire_ptx_replace(const char* text) {
  return show([&] {
    ptx::emulated_machine().replace(text);
    return std::string();
  });
}

// Lets operations choose products of warpgroups from now on, or not: "1" if they may, else "0".
QUIRE_EXPORTED const char* quire_ptx_use_warpgroups(int are_used) {
  return show([&] { return std::string(ptx::use_warpgroups(are_used != 0) ? "1" : "0"); });
}

// Runs the only kernel of a text whose parameters are all 8 bytes long; `order` as the emulator's.
QUIRE_EXPORTED const char* quire_ptx_run(const char* text, const uint64_t* arguments,
                                         int num_arguments, uint32_t blocks, uint32_t threads,
                                         uint64_t shared_bytes, int order) {
  return show([&] {
    std::vector<const void*> pointers;
    for (int i = 0; i < num_arguments; ++i) pointers.push_back(&arguments[i]);
    ptx::Machine machine(ptx::Text{text});
    const ptx::Order chosen{order == 1, order == 2, order == 0, 1};
    machine.launch(machine.names().at(0), pointers.data(), {blocks, 1, 1}, {threads, 1, 1},
                   shared_bytes, chosen);
    return std::string();
  });
}
