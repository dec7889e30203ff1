// A team of threads that lives for a whole sequence and meets at barriers.
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

// Spins, then sleeps: the thread that is waited for may have lost its core, and takes that of one that sleeps.
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

// How far a problem is, for one that reads its results at the same time.
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

// One thread's place in its team. The size is of those who came, which may be fewer than were asked for.
struct ThreadContext {
  int rank, size;
  Barrier* of_team;

  void barrier() const {
    if (size > 1) of_team->wait(size);
  }
  // Its part of so many.
  Range share(int64_t all) const { return {all * rank / size, all * (rank + 1) / size}; }
};

// What runs a problem, shared out among a team, and the elements of room that the team takes.
template <class Problem>
struct Kernel {
  void (*run)(const Problem&, ThreadContext);
  int64_t (*workspace)(const Problem&, int team);
};

// The same of parts begin..end-1 of a problem, which do not depend on one another.
template <class Problem>
struct KernelOfParts {
  void (*run)(const Problem&, Range parts, ThreadContext);
  int64_t (*workspace)(const Problem&, int team);
};

// How many of a team take one of two problems: of an odd number the first has one more.
inline int half_size(int team, int half) { return (team + 1 - half) / 2; }

// f(half, member) for what the thread of a rank does in a team whose halves, with a barrier each, take a problem each.
// The first never waits for the second. One thread alone is each half in turn.
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
