#include "fiber.h"

#include <cstdint>
#include <cstdlib>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emu {
namespace {

// Reports every switch to AddressSanitizer, which would take the other stack for an overflow.
#if defined(__SANITIZE_ADDRESS__)
void before_switch(void** fake_stack, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}
void after_switch(void* fake_stack, const void** bottom, size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
}
// Frames that were left behind must not be taken for those that come.
void forget_frames(const void* stack, size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(stack, bytes);
}
#else
void before_switch(void**, const void*, size_t) {}
void after_switch(void*, const void**, size_t*) {}
void forget_frames(const void*, size_t) {}
#endif

}  // namespace

struct Fiber::Context {
  const void* caller_bottom = nullptr;
  size_t caller_bytes = 0;
  void* caller_fake_stack = nullptr;
  void* own_fake_stack = nullptr;
#if defined(__x86_64__)
  void* caller_stack_pointer = nullptr;
  void* own_stack_pointer = nullptr;
#else
  ucontext_t caller;
  ucontext_t own;
#endif
};

#if defined(__x86_64__)

// Saves the registers that a call preserves, stores the stack pointer, and takes up another stack
// where it was left. ucontext does the same at the price of a system call each time.
extern "C" void emu_switch_stack(void** from, void* to);
asm(R"(
  .text
  .type emu_switch_stack, @function
emu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emu_switch_stack, .-emu_switch_stack
)");

namespace {

thread_local Fiber* starting = nullptr;

}  // namespace

#endif

Fiber::Fiber(size_t stack_bytes)
    : stack_bytes_(stack_bytes), stack_(new char[stack_bytes]), context_(new Context) {}

Fiber::~Fiber() = default;

// The first frame of every fiber; never returns.
void Fiber::run(Fiber* fiber) {
  Context& context = *fiber->context_;
  after_switch(nullptr, &context.caller_bottom, &context.caller_bytes);
  fiber->entry_(fiber->argument_);
  fiber->yield();
  std::abort();  // resumed after its end
}

#if defined(__x86_64__)

void Fiber::start(Entry entry, void* argument) {
  entry_ = entry;
  argument_ = argument;
  forget_frames(stack_.get(), stack_bytes_);
  context_->own_fake_stack = nullptr;
  const auto top = reinterpret_cast<uintptr_t>(stack_.get() + stack_bytes_) & ~uintptr_t{15};
  auto** frame = reinterpret_cast<void**>(top);
  *--frame = nullptr;  // keeps the stack pointer where a called function expects it
  *--frame = reinterpret_cast<void*>(+[] { run(starting); });
  for (int i = 0; i < 6; ++i) *--frame = nullptr;
  context_->own_stack_pointer = frame;
}

void Fiber::resume() {
  starting = this;
  before_switch(&context_->caller_fake_stack, stack_.get(), stack_bytes_);
  emu_switch_stack(&context_->caller_stack_pointer, context_->own_stack_pointer);
  after_switch(context_->caller_fake_stack, nullptr, nullptr);
}

void Fiber::yield() {
  Context& context = *context_;
  before_switch(&context.own_fake_stack, context.caller_bottom, context.caller_bytes);
  emu_switch_stack(&context.own_stack_pointer, context.caller_stack_pointer);
  after_switch(context.own_fake_stack, &context.caller_bottom, &context.caller_bytes);
}

#else

void Fiber::start(Entry entry, void* argument) {
  entry_ = entry;
  argument_ = argument;
  forget_frames(stack_.get(), stack_bytes_);
  getcontext(&context_->own);
  context_->own.uc_stack.ss_sp = stack_.get();
  context_->own.uc_stack.ss_size = stack_bytes_;
  context_->own.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(this);
  const auto entry_point = +[](unsigned high, unsigned low) {
    run(reinterpret_cast<Fiber*>(static_cast<uintptr_t>(high) << 32 | low));
  };
  makecontext(&context_->own, reinterpret_cast<void (*)()>(entry_point), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
}

void Fiber::resume() {
  before_switch(&context_->caller_fake_stack, stack_.get(), stack_bytes_);
  swapcontext(&context_->caller, &context_->own);
  after_switch(context_->caller_fake_stack, nullptr, nullptr);
}

void Fiber::yield() {
  Context& context = *context_;
  before_switch(&context.own_fake_stack, context.caller_bottom, context.caller_bytes);
  swapcontext(&context.own, &context.caller);
  after_switch(context.own_fake_stack, &context.caller_bottom, &context.caller_bytes);
}

#endif

}  // namespace emu
