// Stacks to switch between. ucontext only enters a stack; after that _setjmp and _longjmp switch, because swapcontext
// makes two system calls (320 ns for a round trip instead of 20). The address sanitizer must be told of switches, and
// supports swapcontext; the thread sanitizer knows _setjmp and _longjmp within one stack only.
#pragma once

#if defined(_FORTIFY_SOURCE)
#undef _FORTIFY_SOURCE  // its longjmp reports a switch of stacks as an error
#endif
#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>

#include "interpreter/races.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace rnnkern::device {

class Context {
 public:
  void prepare(char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#if defined(__SANITIZE_ADDRESS__)
    bottom_ = stack;
    bytes_ = bytes;
#else
    entered_ = false;
#endif
  }

#if defined(__SANITIZE_ADDRESS__)

  // Leaves the running stack, which must be this one; returns when another stack switches back to it.
  void go_to(Context& to) {
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, to.bottom_, to.bytes_);
    swapcontext(&context_, &to.context_);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
  }

  // Must be called first by an entry function.
  static void entered_from(Context& from) { __sanitizer_finish_switch_fiber(nullptr, &from.bottom_, &from.bytes_); }

 private:
  ucontext_t context_{};
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;

#else

  __attribute__((noinline)) void go_to(Context& to) {
    if (races::watched()) {
      swapcontext(&context_, &to.context_);
      return;
    }
    entered_ = true;
    if (_setjmp(jump_)) return;
    if (to.entered_) _longjmp(to.jump_, 1);
    setcontext(&to.context_);
  }

  static void entered_from(Context&) {}

 private:
  ucontext_t context_{};
  jmp_buf jump_{};
  bool entered_ = false;

#endif
};

}  // namespace rnnkern::device
