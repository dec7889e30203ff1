// Kernels whose result depends on the seed, because nothing orders what their threads do. Those that have an order if
// `in` is not 0 show what is missing. Tests use the numbers at the ends of lines.
#pragma once

#include "interpreter/harness.h"

namespace rnnkern::device {
namespace {

using namespace conformance;

using TwoBlocks = Clusters<32, 2, 2>;

// An mbarrier in shared memory at which one thread of the block has arrived, and which then lacks these bytes. A
// cluster_barrier must follow.
Mbarrier* barrier_for(SharedArena& arena, int bytes) {
  auto* barrier = arena.alloc<Mbarrier>(1);
  if (thread() == 0) {
    init(barrier, 1);
    init_fence();
    expect(barrier, bytes);
  }
  return barrier;
}

// ---- effects of the seed

// The order in which warps run.
struct Order : AllAtOnce<128, 4> {
  static void run(const Problem& p) {
    shuffle_xor(0, 1);
    if (lane() == 0) p.out[1 + p.out[0]++] = uint32_t(4 * block() + warp());
  }
};

struct Untouched : OneBlock<32> {
  static void run(const Problem& p) { p.out[thread()] = shared_words()[thread()]; }
};

// One thread stores three times to one word of another block, which returns the last value.
struct StoreOrder : TwoBlocks {
  static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* barrier = barrier_for(arena, 24);
    auto* word = arena.alloc<Word8>(1);
    cluster_barrier();
    if (block() == 0) {
      wait(barrier, 0);
      p.out[thread()] = word->x;
    } else if (thread() == 0) {
      for (uint32_t k = 1; k <= 3; ++k) store_async(map(word, 0), Word8{k, 0}, map(barrier, 0));
    }
    cluster_barrier();
  }
};

// Reads what another block stores; after the wait of all lanes if `in` is 1, of one lane if it is 2.
struct ReadsStore : TwoBlocks {
  static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* barrier = barrier_for(arena, threads * int(sizeof(Word8)));
    auto* received = arena.alloc<Word8>(threads);
    cluster_barrier();
    store_async(map(received + thread(), 1 - cluster_rank()), Word8{7, 8}, map(barrier, 1 - cluster_rank()));
    if (p.in[0] == 1 || (p.in[0] == 2 && lane() == 0)) wait(barrier, 0);
    if (p.in[0] == 2) shuffle(0, 0);
    p.out[block() * threads + thread()] = received[thread()].x;  // 1
    if (p.in[0] != 1) wait(barrier, 0);
    cluster_barrier();
  }
};

// Reads what it copies; after the wait if `in` is not 0.
struct ReadsCopy : OneBlock<32> {
  static void run(const Problem& p) {
    copy_async<4>(shared_words() + thread(), p.in + 1 + thread());
    commit_copies();
    if (p.in[0]) wait_copies<0>();
    p.out[thread()] = shared_words()[thread()];
  }
};

// Copies over data that other threads have to read; after they have read it if `in` is not 0.
struct CopiesOver : OneBlock<64> {
  static void run(const Problem& p) {
    shared_words()[thread()] = 1;
    block_barrier();
    if (!p.in[0]) copy_async<4>(shared_words() + thread(), p.in + 1 + thread());
    p.out[thread()] = shared_words()[63 - thread()];  // 1
    block_barrier();
    if (p.in[0]) copy_async<4>(shared_words() + thread(), p.in + 1 + thread());
    commit_copies();
    wait_copies<0>();
  }
};

// A neighbour's value; after a barrier if `in` is not 0.
struct Neighbour : OneBlock<128> {
  static void run(const Problem& p) {
    shared_words()[thread()] = uint32_t(thread());
    if (p.in[0]) block_barrier();
    p.out[thread()] = shared_words()[(thread() + 1) % threads];  // 1
  }
};

// A neighbour's value, in one warp, after a primitive that all lanes reach but that orders nothing; after a barrier if
// `in` is not 0.
struct NeighbourInWarp : OneBlock<32> {
  static void run(const Problem& p) {
    shared_words()[thread()] = uint32_t(thread());
    if (p.in[0]) block_barrier();
    shuffle(0, 0);
    p.out[thread()] = shared_words()[(thread() + 1) % threads];  // 1
  }
};

// Overwrites what another block may still read: nothing says that it has read it. Each block reads after its wait and
// then lives on for a long time.
struct StoresOver : TwoBlocks {
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
    copy_async<4>(shared_words() + thread(), p.in + thread());
    commit_copies();
    if (p.in[0]) wait_copies<0>();
    block_barrier();
    wait_copies<0>();
    p.out[thread()] = shared_words()[63 - thread()];  // 1
  }
};

// A word says that plain data are there, which a flag may and a word may not.
struct WordForData : AllAtOnce<32, 2> {
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
struct TagInOneWord : AllAtOnce<32, 2> {
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
struct FlagAfterWords : AllAtOnce<32, 2> {
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
struct Predecessor : Blocks<32, 8> {
  static void run(const Problem& p) {
    if (thread() == 0) p.out[block()] = block() ? p.out[block() - 1] + 1 : 1;  // 1
  }
};

// Blocks count themselves, with other instructions between the load and the store.
struct Counts : Blocks<32, 16> {
  static void run(const Problem& p) {
    const uint32_t before = p.out[0];  // 1
    block_barrier();
    if (thread() == 0) p.out[0] = before + 1;
  }
};

}  // namespace
}  // namespace rnnkern::device
