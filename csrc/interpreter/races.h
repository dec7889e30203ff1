// What the thread sanitizer is told about a launch, if the program runs under it: every CUDA thread is one of its
// fibers. Kernels are compiled with -fsanitize=thread and the interpreter without, because it acts as the host's
// thread, whose accesses during a launch are ignored. A pair of accesses is a race unless barriers, mbarriers or flags
// order them, in whatever order this run had them.
#pragma once

#if defined(__SANITIZE_THREAD__)
#error "Compile csrc/interpreter/fibers.cpp and primitives.cpp without -fsanitize=thread, and the kernels with it."
#endif

#include <cstddef>
#include <cstdint>
#include <string>

// Null without the sanitizer. <sanitizer/tsan_interface.h> and <sanitizer/tsan_interface_atomic.h> have the first ones.
extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_set_fiber_name(void* fiber, const char* name);
[[gnu::weak]] void __tsan_acquire(void* what);
[[gnu::weak]] void __tsan_release(void* what);
[[gnu::weak]] uint64_t __tsan_atomic64_fetch_add(volatile uint64_t* at, uint64_t value, int order);
[[gnu::weak]] uint32_t __tsan_atomic32_fetch_add(volatile uint32_t* at, uint32_t value, int order);
[[gnu::weak]] uint64_t __tsan_atomic64_load(const volatile uint64_t* at, int order);
[[gnu::weak]] uint32_t __tsan_atomic32_load(const volatile uint32_t* at, int order);
[[gnu::weak]] void __tsan_read_range(void* at, unsigned long bytes);
[[gnu::weak]] void __tsan_write_range(void* at, unsigned long bytes);
[[gnu::weak]] void __tsan_func_entry(void* returns_to);
[[gnu::weak]] void __tsan_func_exit();
[[gnu::weak]] void AnnotateIgnoreReadsBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreReadsEnd(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace rnnkern::device::races {

inline bool watched() { return __tsan_create_fiber != nullptr; }

constexpr unsigned unordered = 1;  // a switch orders nothing

// The host's thread during a launch.
class Host {
 public:
  Host() {
    if (!watched()) return;
    fiber = __tsan_get_current_fiber();
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Host() {
    if (!watched()) return;
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Host(const Host&) = delete;

  void acquires(void* what) const {
    if (watched()) __tsan_acquire(what);
  }
  void releases(void* what) const {
    if (watched()) __tsan_release(what);
  }

  void* fiber = nullptr;
};

// A CUDA thread as the sanitizer knows it. The interpreter calls these functions on its behalf, as the host's thread.
class Thread {
 public:
  Thread() {
    if (watched()) fiber_ = __tsan_create_fiber(0);
  }
  ~Thread() {
    if (fiber_) __tsan_destroy_fiber(fiber_);
  }
  Thread(const Thread&) = delete;

  // Its name in reports.
  void is(const std::string& name) const {
    if (fiber_) __tsan_set_fiber_name(fiber_, name.c_str());
  }

  void acquires(void* what) const {
    as([=] { __tsan_acquire(what); });
  }
  void releases(void* what) const {
    as([=] { __tsan_release(what); });
  }
  void reads(const void* from, size_t bytes) const {
    as([=] { __tsan_read_range(const_cast<void*>(from), bytes); });
  }
  void writes(void* to, size_t bytes) const {
    as([=] { __tsan_write_range(to, bytes); });
  }
  // Words that are read and written as a whole. Such accesses order nothing.
  void reads_relaxed(const void* word) const {
    as([=] {
      for (int k = 0; k < 2; ++k) __tsan_atomic64_load(static_cast<const uint64_t*>(word) + k, __ATOMIC_RELAXED);
    });
  }
  // Adding 0 leaves the value, which arrives later.
  void writes_relaxed(void* word) const {
    as([=] {
      for (int k = 0; k < 2; ++k) __tsan_atomic64_fetch_add(static_cast<uint64_t*>(word) + k, 0, __ATOMIC_RELAXED);
    });
  }
  void reads_flag(const uint32_t* flag) const {
    as([=] { __tsan_atomic32_load(flag, __ATOMIC_ACQUIRE); });
  }
  void writes_flag(uint32_t* flag) const {
    as([=] { __tsan_atomic32_fetch_add(flag, 0, __ATOMIC_RELEASE); });
  }

  // Kernel code runs as this thread, from `enter` to `leave`.
  void enter() const {
    if (fiber_) __tsan_switch_to_fiber(fiber_, unordered);
  }
  static void leave(const Host& host) {
    if (host.fiber) __tsan_switch_to_fiber(host.fiber, unordered);
  }

 private:
  template <class F>
  void as(F f) const {
    if (!fiber_) return;
    void* const caller = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber_, unordered);
    f();
    __tsan_switch_to_fiber(caller, unordered);
  }

  void* fiber_ = nullptr;
};

}  // namespace rnnkern::device::races
