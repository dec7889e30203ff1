// A team of threads that lives for a whole sequence and meets at barriers.
#pragma once

#include <sched.h>

#include <atomic>

namespace rnnkern {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins, then yields: a thread that lost its core must not keep the others from theirs.
class Barrier {
 public:
  void wait(int members) {
    const unsigned round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      relax();
      if (spins >= 4096) sched_yield();
    }
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> round_{0};
};

// One thread's place in its team. The size is of those who came, which may be fewer than were asked for.
struct Member {
  int rank, size;
  Barrier* barrier;

  void meet() const {
    if (size > 1) barrier->wait(size);
  }
};

}  // namespace rnnkern
