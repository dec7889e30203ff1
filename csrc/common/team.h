// A team of threads that processes a whole sequence and synchronizes at barriers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace rnnkern {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins, then sleeps: the thread that everyone waits for may have been preempted, and can take the core of a sleeper.
template <class F>
void wait_until(F done) {
  for (int spins = 0; !done(); ++spins) {
    if (spins < 4096) {
      relax();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

class Barrier {
 public:
  void wait(int members) {
    const unsigned round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    wait_until([&] { return round_.load(std::memory_order_acquire) != round; });
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> round_{0};
};

// Number of completed steps of a problem, for a team that consumes its results concurrently.
class Progress {
 public:
  void reach(int64_t steps) { steps_.store(steps, std::memory_order_release); }
  void wait(int64_t steps) const {
    wait_until([&] { return steps_.load(std::memory_order_acquire) >= steps; });
  }

 private:
  alignas(64) std::atomic<int64_t> steps_{0};
};

struct Range {
  int64_t begin, end;
};

// A thread's rank in its team. `size` is the actual team size, which may be smaller than requested.
struct ThreadContext {
  int rank, size;
  Barrier* of_team;

  void barrier() const {
    if (size > 1) of_team->wait(size);
  }
  // This thread's share of `all` items.
  Range share(int64_t all) const { return {all * rank / size, all * (rank + 1) / size}; }
};

// A function that runs a problem on a team, and the number of workspace elements it needs for a team of that size.
template <class Problem>
struct Kernel {
  void (*run)(const Problem&, ThreadContext);
  int64_t (*workspace)(const Problem&, int team);
};

// The same for parts [begin, end) of a problem. Parts are independent of one another.
template <class Problem>
struct KernelOfParts {
  void (*run)(const Problem&, Range parts, ThreadContext);
  int64_t (*workspace)(const Problem&, int team);
};

// Team size of each half (0 or 1). If the team size is odd, the first half has one more thread.
inline int half_size(int team, int half) { return (team + 1 - half) / 2; }

// Splits a team into two halves, one for each of two problems, each with its own barrier. Calls f(half, member) for the
// thread of the given rank. The first half never waits for the second. A single thread runs both halves in turn.
template <class F>
void in_halves(int rank, int team, Barrier (&barriers)[2], F f) {
  if (team == 1) {
    for (int half = 0; half < 2; ++half) f(half, ThreadContext{0, 1, &barriers[half]});
    return;
  }
  const int first = half_size(team, 0), half = rank >= first;
  f(half, ThreadContext{rank - half * first, half_size(team, half), &barriers[half]});
}

}  // namespace rnnkern
