// A stack of its own that code runs on until it yields: what a CUDA thread is in the emulator.
#pragma once

#include <cstddef>
#include <memory>

namespace emu {

class Fiber {
 public:
  using Entry = void (*)(void* argument);

  explicit Fiber(size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Has the next `resume` call entry(argument), whatever ran before and whether or not it ended.
  void start(Entry entry, void* argument);

  // Runs the fiber until it yields or its entry returns. Not from within a fiber.
  void resume();

  // Goes back to where `resume` was called. Only from within this fiber.
  void yield();

 private:
  struct Context;
  static void run(Fiber* fiber);

  size_t stack_bytes_;
  std::unique_ptr<char[]> stack_;
  std::unique_ptr<Context> context_;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace emu
