// The primitive layer on the host; device/device.h has the list. Every thread of a launch is a fiber; what follows
// suspends it where hardware would make it wait, and `interpret` runs the others meanwhile (interpreter/fibers.cpp).
// What hardware leaves open is left open here too, and decided by the seed: the order of threads, and how late
// store_async and cp.async deliver. Misuse ends the launch with std::runtime_error, which names the place.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>

#include "device/types.h"

namespace rnnkern::device {

using Place = std::source_location;

struct Shape {
  int64_t blocks, shared_bytes;
  int cluster;
  bool cooperative;
  int threads;
};

// Runs `kernel` once for every thread. Blocks of a cluster, and of a cooperative launch, are alive together.
void interpret(const Shape& shape, const std::function<void()>& kernel);

// How the launches that follow behave: the order of everything that has none, how late store_async and cp.async
// deliver, and who starves (one warp of every block, or one whole block, runs only when nothing else can).
void set_seed(uint64_t seed);

// ---- what primitives are made of

// Lets the others run before the condition of spin_until is tried, for the first time or again.
void pause_spin(Place place);
void end_spin();

// Waiting conditions are worth another try.
void stored();

// A convergence point of a warp: the last lane to come runs `together` over what each lane gave, then all go on.
void converge(const char* what, Place place, void* mine, void (*together)(void* const* lanes));

[[noreturn]] void fail(const std::string& what, Place place);

int thread();
int block();
int blocks();
int cluster_rank();
int cluster_size();
char* shared_memory();
void block_barrier(Place place = Place::current());
void cluster_barrier(Place place = Place::current());
[[noreturn]] void trap(Place place = Place::current());

template <class F>
void spin_until(F condition, Place place = Place::current()) {
  do pause_spin(place);
  while (!condition());
  end_spin();
}

// ---- clusters

constexpr bool has_clusters = true;

struct alignas(8) Mbarrier {
  uint16_t arrivals, pending;  // of this phase: how many are wanted, how many are still to come
  int32_t bytes : 31;          // announced less arrived
  uint32_t phase : 1;
};

struct Remote {
  char* address;
};

void init(Mbarrier* barrier, int arrivals, Place place = Place::current());
inline void init_fence() {}
void expect(Mbarrier* barrier, int bytes, Place place = Place::current());
void wait(Mbarrier* barrier, int parity, Place place = Place::current());
Remote map(const void* pointer, int rank, Place place = Place::current());
void store_async(Remote to, const void* value, int bytes, Remote on, Place place);
inline void store_async(Remote to, Word8 value, Remote on, Place place = Place::current()) {
  store_async(to, &value, sizeof value, on, place);
}
inline void store_async(Remote to, Word16 value, Remote on, Place place = Place::current()) {
  store_async(to, &value, sizeof value, on, place);
}

// ---- warps

template <class T>
T exchange(const char* what, T x, int from, Place place) {
  static_assert(sizeof(T) == 4);
  struct Lane {
    T given, taken;
    int from;
  } mine{x, x, from};
  converge(what, place, &mine, [](void* const* lanes) {
    for (int l = 0; l < warp_size; ++l) {
      Lane& lane = *static_cast<Lane*>(lanes[l]);
      lane.taken = static_cast<Lane*>(lanes[lane.from])->given;
    }
  });
  return mine.taken;
}

template <class T>
T shuffle(T x, int from, Place place = Place::current()) {
  return exchange("shuffle", x, from & (warp_size - 1), place);
}

template <class T>
T shuffle_xor(T x, int mask, Place place = Place::current()) {
  return exchange("shuffle_xor", x, (thread() % warp_size) ^ (mask & (warp_size - 1)), place);
}

void load_matrices(uint32_t (&r)[4], const void* row, Place place = Place::current());
void load_matrices_transposed(uint32_t (&r)[4], const void* row, Place place = Place::current());
void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bfloat16, Place place = Place::current());
void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], float16, Place place = Place::current());
void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], tfloat32, Place place = Place::current());
float nearest_tfloat32(float x);

// ---- copies

void copy_async(void* to, const void* from, int bytes, Place place);
template <int bytes>
void copy_async(void* to, const void* from, Place place = Place::current()) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
  copy_async(to, from, bytes, place);
}
void commit_copies();
void wait_copies(int most);
template <int n>
void wait_copies() {
  wait_copies(n);
}

// ---- words and flags in global memory. A fiber is never interrupted within one: 128 bits are whole by themselves.

inline Word16 load_relaxed(const Word16* from) { return *from; }
inline void store_relaxed(Word16* to, Word16 x) {
  *to = x;
  stored();
}
inline uint32_t load_acquire(const uint32_t* from) { return *from; }
inline void store_release(uint32_t* to, uint32_t x) {
  *to = x;
  stored();
}

}  // namespace rnnkern::device
