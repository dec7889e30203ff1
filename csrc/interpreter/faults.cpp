// Kernels with one mistake each, or with a result that depends on the seed; python_tests/gpu/test_interpreter.py has
// the expected reports. They are not for hardware. Tests use the numbers at the ends of lines.
#include "interpreter/harness.h"

namespace rnnkern::device {
namespace {

using conformance::OneBlock, conformance::OnWords, conformance::Words;

uint32_t* words() { return reinterpret_cast<uint32_t*>(shared_memory()); }

// ---- effects of the seed

// The order in which warps run.
struct Order : OnWords {
  static constexpr int threads = 128;
  static constexpr cuda::Launch shape{.blocks = 4, .cooperative = true};
  static void run(const Problem& p) {
    shuffle_xor(0, 1);
    if (lane() == 0) p.out[1 + p.out[0]++] = uint32_t(4 * block() + warp());
  }
};

struct Untouched : OneBlock<32> {
  static void run(const Problem& p) { p.out[thread()] = words()[thread()]; }
};

// One thread stores three times to one word of another block, which returns the last value.
struct StoreOrder : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 2, .shared_bytes = 1024, .cluster = 2};
  static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* barrier = arena.alloc<Mbarrier>(1);
    auto* word = arena.alloc<Word8>(1);
    if (thread() == 0) {
      init(barrier, 1);
      init_fence();
    }
    cluster_barrier();
    if (block() == 0) {
      if (thread() == 0) expect(barrier, 24);
      wait(barrier, 0);
      p.out[thread()] = word->x;
    } else if (thread() == 0) {
      for (uint32_t k = 1; k <= 3; ++k) store_async(map(word, 0), Word8{k, 0}, map(barrier, 0));
    }
    cluster_barrier();
  }
};

// Reads what another block stores; after the wait if `in` is not 0.
struct ReadsStore : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 2, .shared_bytes = 1024, .cluster = 2};
  static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* barrier = arena.alloc<Mbarrier>(1);
    auto* received = arena.alloc<Word8>(threads);
    if (thread() == 0) {
      init(barrier, 1);
      init_fence();
      expect(barrier, threads * int(sizeof(Word8)));
    }
    cluster_barrier();
    store_async(map(received + thread(), 1 - cluster_rank()), Word8{7, 8}, map(barrier, 1 - cluster_rank()));
    if (p.in[0]) wait(barrier, 0);
    p.out[block() * threads + thread()] = received[thread()].x;
    if (!p.in[0]) wait(barrier, 0);
    cluster_barrier();
  }
};

// Reads what it copies; after the wait if `in` is not 0.
struct ReadsCopy : OneBlock<32> {
  static void run(const Problem& p) {
    copy_async<4>(words() + thread(), p.in + 1 + thread());
    commit_copies();
    if (p.in[0]) wait_copies<0>();
    p.out[thread()] = words()[thread()];
  }
};

// Copies over data that other threads have to read; after they have read it if `in` is not 0.
struct CopiesOver : OneBlock<64> {
  static void run(const Problem& p) {
    words()[thread()] = 1;
    block_barrier();
    if (!p.in[0]) copy_async<4>(words() + thread(), p.in + 1 + thread());
    p.out[thread()] = words()[63 - thread()];  // 1
    block_barrier();
    if (p.in[0]) copy_async<4>(words() + thread(), p.in + 1 + thread());
    commit_copies();
    wait_copies<0>();
  }
};

// A neighbour's value; after a barrier if `in` is not 0.
struct Neighbour : OneBlock<128> {
  static void run(const Problem& p) {
    words()[thread()] = uint32_t(thread());
    if (p.in[0]) block_barrier();
    p.out[thread()] = words()[(thread() + 1) % threads];  // 1
  }
};

// A neighbour's value, in one warp, after a primitive that all lanes reach but that orders nothing; after a barrier if
// `in` is not 0.
struct NeighbourInWarp : OneBlock<32> {
  static void run(const Problem& p) {
    words()[thread()] = uint32_t(thread());
    if (p.in[0]) block_barrier();
    shuffle(0, 0);
    p.out[thread()] = words()[(thread() + 1) % threads];  // 1
  }
};

// One lane waits for the stores that all lanes read.
struct OneLaneWaits : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 2, .shared_bytes = 1024, .cluster = 2};
  static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* barrier = arena.alloc<Mbarrier>(1);
    auto* received = arena.alloc<Word8>(threads);
    if (thread() == 0) {
      init(barrier, 1);
      init_fence();
      expect(barrier, threads * int(sizeof(Word8)));
    }
    cluster_barrier();
    store_async(map(received + thread(), 1 - cluster_rank()), Word8{7, 8}, map(barrier, 1 - cluster_rank()));
    if (p.in[0] || lane() == 0) wait(barrier, 0);
    shuffle(0, 0);
    p.out[block() * threads + thread()] = received[thread()].x;  // 1
    cluster_barrier();
  }
};

// Overwrites what another block may still read: nothing says that it has read it. Each block reads after its wait and
// then lives on for a long time.
struct StoresOver : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 2, .shared_bytes = 1024, .cluster = 2};
  static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* barriers = arena.alloc<Mbarrier>(2);
    auto* word = arena.alloc<Word8>(1);
    if (thread() == 0) {
      for (int k = 0; k < 2; ++k) init(barriers + k, 1);
      init_fence();
      if (block() == 0) {
        for (int k = 0; k < 2; ++k) expect(barriers + k, sizeof(Word8));
      }
    }
    cluster_barrier();
    if (block() == 1 && thread() == 0) store_async(map(word, 0), Word8{1, 0}, map(barriers, 0));
    if (block() == 0) {
      wait(barriers, 0);
      p.out[thread()] = word->x;  // 1
    }
    if (p.in[0]) cluster_barrier();
    if (block() == 1 && thread() == 0) store_async(map(word, 0), Word8{1, 0}, map(barriers + 1, 0));  // 2
    if (block() == 0) wait(barriers + 1, 0);
    cluster_barrier();
  }
};

// Blocks pass a barrier while their copies are under way, and wait for them afterwards.
struct WaitsAfterBarrier : OneBlock<64> {
  static void run(const Problem& p) {
    copy_async<4>(words() + thread(), p.in + thread());
    commit_copies();
    if (p.in[0]) wait_copies<0>();
    block_barrier();
    wait_copies<0>();
    p.out[thread()] = words()[63 - thread()];  // 1
  }
};

// A word says that plain data are there, which a flag may and a word may not.
struct WordForData : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 2, .cooperative = true};
  static void run(const Problem& p) {
    uint32_t* data = p.out + threads;
    auto* word = reinterpret_cast<Word16*>(data + threads);
    uint32_t* flag = data + 2 * threads;
    if (block() == 0) {
      data[thread()] = 7;
      block_barrier();
      if (thread() == 0 && p.in[0]) store_release(flag, 1);
      if (thread() == 0 && !p.in[0]) store_relaxed(word, {1, 0, 0, 1});
    } else {
      spin_until([&] { return p.in[0] ? load_acquire(flag) == 1 : load_relaxed(word).w == 1; });
      p.out[thread()] = data[thread()];  // 1
    }
  }
};

// ---- order of words and blocks

// The second of two words says that the first is there; with a tag in each word if `in` is not 0.
struct TagInOneWord : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 2, .cooperative = true};
  static void run(const Problem& p) {
    auto* sent = reinterpret_cast<Word16*>(p.out + threads) + 2 * thread();
    if (block() == 0) {
      store_relaxed(sent, {7, 0, 0, 1});
      store_relaxed(sent + 1, {7, 0, 0, 1});
    } else {
      spin_until([&] { return load_relaxed(sent + 1).w == 1 && (!p.in[0] || load_relaxed(sent).w == 1); });
      p.out[thread()] = load_relaxed(sent).x;
    }
  }
};

// Words that a flag follows; the second of them goes over the first.
struct FlagAfterWords : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 2, .cooperative = true};
  static void run(const Problem& p) {
    auto* sent = reinterpret_cast<Word16*>(p.out + threads) + thread();
    uint32_t* flag = p.out + 9 * threads;
    if (block() == 0) {
      store_relaxed(sent, {6, 0, 0, 0});
      store_relaxed(sent, {7, 0, 0, 0});
      store_relaxed(sent + threads, {7, 0, 0, 0});
      p.out[thread()] = load_relaxed(sent).x;
      block_barrier();
      if (thread() == 0) store_release(flag, 1);
    } else {
      spin_until([&] { return load_acquire(flag) == 1; });
      if (load_relaxed(sent).x != 7 || load_relaxed(sent + threads).x != 7) trap();
    }
  }
};

// A block uses the result of the one before it.
struct Predecessor : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 8};
  static void run(const Problem& p) {
    if (thread() == 0) p.out[block()] = block() ? p.out[block() - 1] + 1 : 1;  // 1
  }
};

// Blocks count themselves, with other instructions between the load and the store.
struct Counts : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 16};
  static void run(const Problem& p) {
    const uint32_t before = p.out[0];  // 1
    block_barrier();
    if (thread() == 0) p.out[0] = before + 1;
  }
};

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

struct WaitsForever : OneBlock<64> {
  static void run(const Problem&) {
    auto* barrier = reinterpret_cast<Mbarrier*>(shared_memory());
    if (thread() == 0) init(barrier, 2);
    init_fence();
    block_barrier();
    if (thread() == 0) expect(barrier, 48);
    wait(barrier, 0);  // 1
  }
};

// One warp ends a second phase alone; the other, woken by the first phase, may miss it.
struct SleepsThrough : OneBlock<64> {
  static void run(const Problem&) {
    auto* barrier = reinterpret_cast<Mbarrier*>(shared_memory());
    if (thread() == 0) init(barrier, threads);
    init_fence();
    block_barrier();
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
struct Misuse : OnWords {
  static constexpr int threads = 32;
  static constexpr cuda::Launch shape{.blocks = 2, .shared_bytes = 1024, .cluster = 2};
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
    p.out[thread()] = words()[p.in[0] + uint32_t(thread())];  // 1
  }
};

// Stores asynchronously into its own block, as a cluster of one.
struct StoresAlone : OneBlock<32> {
  static void run(const Problem&) {
    SharedArena arena{shared_memory()};
    auto* barrier = arena.alloc<Mbarrier>(1);
    auto* word = arena.alloc<Word16>(1);
    if (thread() == 0) {
      init(barrier, 1);
      init_fence();
      expect(barrier, sizeof(Word16));
    }
    cluster_barrier();
    if (thread() == 0) store_async(map(word, 0), Word16{}, map(barrier, 0));
    wait(barrier, 0);
  }
};

struct HalfWarp : OneBlock<48> {
  static void run(const Problem&) {}
};

struct OddCluster : OneBlock<32> {
  static constexpr cuda::Launch shape{.blocks = 3, .cluster = 2};
  static void run(const Problem&) {}
};

struct TooManyBytes : OneBlock<32> {
  static constexpr cuda::Launch shape{.blocks = 1, .shared_bytes = 227 * 1024 + 16};
  static void run(const Problem&) {}
};

struct WideCluster : OneBlock<32> {
  static constexpr cuda::Launch shape{.blocks = 32, .cluster = 32};
  static void run(const Problem&) {}
};

struct TooManyAtOnce : OneBlock<1024> {
  static constexpr cuda::Launch shape{.blocks = 265, .cooperative = true};
  static void run(const Problem&) {}
};

// ---- speed

// Rows of 16 bytes, `in` of them apart.
struct ReadsRows : OneBlock<32> {
  static constexpr cuda::Launch shape{.blocks = 1, .shared_bytes = 32 * 16 * 16};
  static void run(const Problem& p) {
    uint32_t r[4];
    load_matrices(r, shared_memory() + 16 * p.in[0] * uint32_t(lane()));
  }
};

// `in` barriers of 512 threads.
struct Barriers : OneBlock<512> {
  static void run(const Problem& p) {
    for (uint32_t k = 0; k < p.in[0]; ++k) block_barrier();
  }
};

constexpr Named kernels[] = {
    named<Order>("order"),
    named<Untouched>("untouched"),
    named<StoreOrder>("store_order"),
    named<ReadsStore>("reads_store"),
    named<ReadsCopy>("reads_copy"),
    named<CopiesOver>("copies_over"),
    named<Neighbour>("neighbour"),
    named<NeighbourInWarp>("neighbour_in_warp"),
    named<OneLaneWaits>("one_lane_waits"),
    named<StoresOver>("stores_over"),
    named<WaitsAfterBarrier>("waits_after_barrier"),
    named<WordForData>("word_for_data"),
    named<TagInOneWord>("tag_in_one_word"),
    named<FlagAfterWords>("flag_after_words"),
    named<Predecessor>("predecessor"),
    named<Counts>("counts"),
    named<DivergesAtBarrier>("diverges_at_barrier"),
    named<DivergesInWarp>("diverges_in_warp"),
    named<HalfAtBarrier>("half_at_barrier"),
    named<LeavesEarly>("leaves_early"),
    named<SpinsForever>("spins_forever"),
    named<SpinsTogether>("spins_together"),
    named<WaitsForever>("waits_forever"),
    named<SleepsThrough>("sleeps_through"),
    named<Misuse>("misuse"),
    named<OutOfBounds>("out_of_bounds"),
    named<StoresAlone>("stores_alone"),
    named<HalfWarp>("half_warp"),
    named<OddCluster>("odd_cluster"),
    named<TooManyBytes>("too_many_bytes"),
    named<WideCluster>("wide_cluster"),
    named<TooManyAtOnce>("too_many_at_once"),
    named<ReadsRows>("reads_rows"),
    named<Barriers>("barriers"),
};

}  // namespace
}  // namespace rnnkern::device

extern "C" int run_fault(const char* name, const uint32_t* in, int64_t in_words, uint32_t* out, int64_t out_words,
                         uint64_t seed, char* said, int64_t said_bytes) {
  using namespace rnnkern::device;
  return run_named(kernels, name, in, in_words, out, out_words, seed, said, said_bytes);
}

extern "C" int64_t bank_conflicts() { return rnnkern::device::bank_conflicts(); }
