// The primitives on the host; device/device.h lists them. Every thread of a launch is a fiber. A primitive suspends its
// fiber where hardware would make the thread wait, and `interpret` runs other fibers meanwhile
// (interpreter/fibers.cpp). What hardware does not specify, the seed decides: the order of threads, and how late
// store_async and cp.async deliver. Misuse ends the launch with std::runtime_error, which contains the source line.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>

#include "device/types.h"

namespace rnnkern::cuda {
struct Facts;  // cuda/facts.h
}

namespace rnnkern::device {

using Place = std::source_location;

struct Shape {
  int64_t blocks, shared_bytes;
  int cluster;
  bool cooperative;
  int threads;
};

// Runs `kernel` once for every thread. The blocks of a cluster, or of a cooperative launch, are alive at the same time;
// other blocks run in small groups, in any order.
void interpret(const Shape& shape, const std::function<void()>& kernel);

// Sets the seed of the next launches. It decides the order of threads, how late store_async and cp.async deliver, and
// which threads starve (one warp of every block, or one whole block, runs only if nothing else can).
void set_seed(uint64_t seed);

// The device that launches are checked against.
cuda::Facts& pretended();

// How often load_matrices had to read a row after another one of its matrix, because both are in the same banks. In all
// launches of this host thread.
int64_t bank_conflicts();

// ---- used by primitives

// Lets other fibers run before the condition of spin_until is tested, the first time and again.
void pause_spin(Place place);
void end_spin();

int thread();
int block();
int blocks();
int cluster_rank();
int cluster_size();
char* shared_memory();
void block_barrier(Place place = Place::current());
void warp_barrier(Place place = Place::current());
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

// How far the initialisation of an mbarrier is visible: to its block, to the hardware that stores, to the cluster.
enum class Fence : uint32_t { none, fenced, shared };

struct alignas(8) Mbarrier {
  uint16_t arrivals, pending;  // of this phase: how many are needed, how many are missing
  int32_t bytes : 29;          // expected minus arrived
  uint32_t fence : 2;          // a Fence
  uint32_t phase : 1;
};
static_assert(sizeof(Mbarrier) == 8);
constexpr int32_t most_bytes = 1 << 20;  // that a phase can lack or have too many, exclusive

struct Remote {
  char* address;
};

void init(Mbarrier* barrier, int arrivals, Place place = Place::current());
void init_fence();
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

uint32_t exchange(const char* what, uint32_t x, int from, Place place);
template <class T>
T exchange(const char* what, T x, int from, Place place) {
  static_assert(sizeof(T) == 4);
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = exchange(what, bits, from, place);
  std::memcpy(&x, &bits, 4);
  return x;
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

// ---- words and flags in global memory. Fibers are not interrupted inside of these, so 128 bits are always consistent.

Word16 load_relaxed(const Word16* from);
void store_relaxed(Word16* to, Word16 x, Place place = Place::current());
uint32_t load_acquire(const uint32_t* from);
void store_release(uint32_t* to, uint32_t x);

}  // namespace rnnkern::device
