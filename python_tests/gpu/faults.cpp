// Kernels with one mistake each, and those of unordered.h; python_tests/gpu/test_interpreter.py has the expected
// reports. They are not for hardware. Tests use the numbers at the ends of lines.
#include "unordered.h"

namespace rnnkern::device {
namespace {

// ---- divergence and deadlock

struct DivergesAtBarrier : OneBlock<64> {
  static void run(const Problem&) {
    if (warp() == 0) {
      block_barrier();  // 1
    } else {
      block_barrier();  // 2
    }
  }
};

struct DivergesInWarp : OneBlock<32> {
  static void run(const Problem& p) {
    if (lane() < 16) {
      p.out[0] = shuffle(1u, 0);  // 1
    } else {
      p.out[0] = shuffle_xor(1u, 1);  // 2
    }
  }
};

struct HalfAtBarrier : OneBlock<64> {
  static void run(const Problem& p) {
    if (lane() < 16) block_barrier();  // 1
    p.out[0] = shuffle(1u, 0);         // 2
  }
};

struct LeavesEarly : OneBlock<64> {
  static void run(const Problem&) {
    if (thread() == 5) return;
    block_barrier();  // 1
  }
};

struct SpinsForever : OneBlock<64> {
  static void run(const Problem& p) {
    if (warp() == 1) spin_until([&] { return load_acquire(p.in) == 1; });  // 1
  }
};

// The condition contains a shuffle, so that it waits for other lanes itself.
struct SpinsTogether : OneBlock<64> {
  static void run(const Problem& p) {
    spin_until([&] { return shuffle(load_acquire(p.in), 3) == 1; });  // 1
  }
};

// An mbarrier at the start of shared memory, for this number of arrivals.
Mbarrier* barrier_of_block(int arrivals) {
  auto* barrier = reinterpret_cast<Mbarrier*>(shared_memory());
  if (thread() == 0) init(barrier, arrivals);
  init_fence();
  block_barrier();
  return barrier;
}

struct WaitsForever : OneBlock<64> {
  static void run(const Problem&) {
    Mbarrier* barrier = barrier_of_block(2);
    if (thread() == 0) expect(barrier, 48);
    wait(barrier, 0);  // 1
  }
};

// One warp ends a second phase alone; the other, woken by the first phase, may miss it.
struct SleepsThrough : OneBlock<64> {
  static void run(const Problem&) {
    Mbarrier* barrier = barrier_of_block(threads);
    expect(barrier, 0);
    wait(barrier, 0);  // 1
    if (warp() == 0) {
      expect(barrier, 0);
      expect(barrier, 0);
      wait(barrier, 1);
    }
  }
};

// ---- misuse

// Two blocks; `in` selects the mistake of one thread of the first.
struct Misuse : TwoBlocks {
  static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* barrier = arena.alloc<Mbarrier>(1);
    auto* fresh = arena.alloc<Mbarrier>(1);
    auto* word = arena.alloc<Word16>(1);
    char* const end = shared_memory() + shape.shared_bytes;
    const uint32_t mistake = p.in[0];
    if (thread() == 0) init(barrier, 1);
    init_fence();
    if (mistake == 18 && thread() == 0) init(fresh, 1);
    cluster_barrier();
    uint32_t r[4];
    if (mistake == 1 && block() == 0) load_matrices(r, end);
    if (mistake == 2 && block() == 0) load_matrices_transposed(r, shared_memory() + 8);
    if (block() == 0 && thread() == 0) {
      if (mistake == 3) wait(fresh, 0);
      if (mistake == 4) expect(fresh, 0);
      if (mistake == 5) store_async(map(word, 1), Word16{}, map(fresh, 1));
      if (mistake == 6) store_async(map(word, 1), Word16{}, map(barrier, 0));
      if (mistake == 7) store_async(map(shared_memory() + 40, 1), Word16{}, map(barrier, 1));
      if (mistake == 8) store_async(map(end, 1), Word16{}, map(barrier, 1));
      if (mistake == 9) map(word, 2);
      if (mistake == 10) map(p.in, 0);
      if (mistake == 11) copy_async<16>(shared_memory() + 8, p.in);
      if (mistake == 12) copy_async<16>(end, p.in);
      if (mistake == 13) expect(barrier, 16);
      if (mistake == 13) expect(barrier, 16);
      if (mistake == 14) wait(reinterpret_cast<Mbarrier*>(p.out), 0);
      if (mistake == 15) init(fresh, 0);
      if (mistake == 16) store_async(map(word, 1), Word16{}, map(barrier, 1));  // 1
      if (mistake == 17) trap();
      if (mistake == 18) store_async(map(word, 1), Word16{}, map(fresh, 1));
      if (mistake == 20) expect(barrier, 1 << 20);
    }
    if (mistake == 19) {
      if (thread() == 0) init(fresh, 1);
      init_fence();
      block_barrier();
      if (thread() == 0) store_async(map(word, 1 - block()), Word16{}, map(fresh, 1 - block()));
    }
    if (mistake == 21 && block() == 1) wait(barrier, 0);
    if (mistake == 21) {  // nothing expects so many bytes
      for (int k = 0; k < 2048; ++k) store_async(map(word, 1), Word16{}, map(barrier, 1));
    }
    if (mistake != 16) cluster_barrier();  // no block waits for that store
  }
};

struct OutOfBounds : OneBlock<32> {
  static void run(const Problem& p) {
    p.out[thread()] = shared_words()[p.in[0] + uint32_t(thread())];  // 1
  }
};

// Stores asynchronously into its own block, as a cluster of one.
struct StoresAlone : OneBlock<32> {
  static void run(const Problem&) {
    SharedArena arena{shared_memory()};
    auto* barrier = barrier_for(arena, sizeof(Word16));
    auto* word = arena.alloc<Word16>(1);
    cluster_barrier();
    if (thread() == 0) store_async(map(word, 0), Word16{}, map(barrier, 0));
    wait(barrier, 0);
  }
};

// For launches that are refused.
template <class Launch>
struct Idle : Launch {
  static void run(const typename Launch::Problem&) {}
};

struct HalfWarp : Idle<OneBlock<48>> {};
struct OddCluster : Idle<Clusters<32, 3, 2>> {};
struct TooManyBytes : Idle<OneBlock<32>> {
  static constexpr cuda::Launch shape{.blocks = 1, .shared_bytes = 227 * 1024 + 16};
};
struct WideCluster : Idle<Clusters<32, 32, 32>> {};
struct TooManyAtOnce : Idle<AllAtOnce<1024, 265>> {};

// ---- speed

// Rows of 16 bytes, `in` of them apart.
struct ReadsRows : OneBlock<32> {
  static constexpr cuda::Launch shape{.blocks = 1, .shared_bytes = 32 * 16 * 16};
  static void run(const Problem& p) {
    uint32_t r[4];
    load_matrices(r, shared_memory() + 16 * p.in[0] * uint32_t(lane()));
  }
};

constexpr auto kernels =
    named<Order, Untouched, StoreOrder, ReadsStore, ReadsCopy, CopiesOver, Neighbour, NeighbourInWarp, StoresOver,
          WaitsAfterBarrier, WordForData, TagInOneWord, FlagAfterWords, Predecessor, Counts, DivergesAtBarrier,
          DivergesInWarp, HalfAtBarrier, LeavesEarly, SpinsForever, SpinsTogether, WaitsForever, SleepsThrough, Misuse,
          OutOfBounds, StoresAlone, HalfWarp, OddCluster, TooManyBytes, WideCluster, TooManyAtOnce, ReadsRows>;

}  // namespace
}  // namespace rnnkern::device

extern "C" int run_fault(const char* name, const uint32_t* in, int64_t in_words, uint32_t* out, int64_t out_words,
                         uint64_t seed, char* said, int64_t said_bytes) {
  using namespace rnnkern::device;
  return run_named(kernels, name, in, in_words, out, out_words, seed, said, said_bytes);
}

extern "C" int64_t bank_conflicts() { return rnnkern::device::bank_conflicts(); }
