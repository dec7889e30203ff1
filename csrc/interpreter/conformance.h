// One small kernel for each primitive of device/device.h, whose result shows the effect of that primitive. The same
// source runs on the interpreter and on hardware; python_tests/gpu/test_primitives.py has the expected results.
#pragma once

#include "cuda/launch.h"
#include "device/device.h"

namespace rnnkern::device::conformance {

// The arguments of all these kernels; `out` is zero on entry.
struct Words {
  const uint32_t* in;
  uint32_t* out;
};

struct OnWords {
  using Problem = Words;
  static constexpr char header[] = "interpreter/conformance.h";
};

RNNKERN_DEVICE uint32_t bits_of(float x) {
  uint32_t y;
  std::memcpy(&y, &x, 4);
  return y;
}

RNNKERN_DEVICE float float_of(uint32_t x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}

// How kernels are launched: `n` threads per block, blocks one by one, in clusters, or all at once.
template <int n, int blocks>
struct Blocks : OnWords {
  static constexpr int threads = n;
  static constexpr cuda::Launch shape{.blocks = blocks, .shared_bytes = 4096};
};

template <int n>
using OneBlock = Blocks<n, 1>;

template <int n, int blocks, int size>
struct Clusters : OnWords {
  static constexpr int threads = n;
  static constexpr cuda::Launch shape{.blocks = blocks, .shared_bytes = 16384, .cluster = size};
};

template <int n, int blocks>
struct AllAtOnce : OnWords {
  static constexpr int threads = n;
  static constexpr cuda::Launch shape{.blocks = blocks, .cooperative = true};
};

struct Ids : Blocks<96, 3> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    uint32_t* mine = p.out + 5 * (block() * threads + thread());
    const int ids[5] = {thread(), block(), blocks(), lane(), warp()};
    for (int k = 0; k < 5; ++k) mine[k] = uint32_t(ids[k]);
  }
};

// The positions of arrays: their alignment, and that they do not overlap.
struct SharedMemory : OneBlock<32> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* words = arena.alloc<uint32_t>(3);
    auto* bytes = arena.alloc<char>(17);
    auto* wide = arena.alloc<Word16>(32);
    auto* last = arena.alloc<double>(1);
    if (thread() == 0) {
      words[2] = 7;
      bytes[16] = 9;
      *last = 2.5;
    }
    wide[thread()] = {p.in[0], p.in[1], p.in[2], uint32_t(thread())};
    block_barrier();
    p.out[thread()] = words[2] + bytes[16] + uint32_t(2 * *last) + wide[31 - thread()].w + wide[thread()].z;
    if (thread() == 0) {
      p.out[32] = uint32_t(reinterpret_cast<char*>(words) - shared_memory());
      p.out[33] = uint32_t(reinterpret_cast<char*>(bytes) - shared_memory());
      p.out[34] = uint32_t(reinterpret_cast<char*>(wide) - shared_memory());
      p.out[35] = uint32_t(reinterpret_cast<char*>(last) - shared_memory());
      p.out[36] = uint32_t(arena.used);
      p.out[37] = uint32_t(reinterpret_cast<uint64_t>(shared_memory()) % 128);
    }
  }
};

RNNKERN_DEVICE uint32_t* shared_words() { return reinterpret_cast<uint32_t*>(shared_memory()); }

// Five rounds through shared memory, each of which passes the values on by one of `count` threads.
template <class Barrier>
RNNKERN_DEVICE uint32_t passed_on(uint32_t value, uint32_t* shared, int rank, int count, Barrier barrier) {
  for (int round = 0; round < 5; ++round) {
    shared[rank] = value;
    barrier();
    value = shared[(rank + 1) % count];
    barrier();
  }
  return value;
}

struct BlockBarrier : OneBlock<128> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    p.out[thread()] = passed_on(p.in[thread()], shared_words(), thread(), threads, [] { block_barrier(); });
  }
};

struct WarpBarrier : OneBlock<128> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    uint32_t* shared = shared_words() + warp() * warp_size;
    p.out[thread()] = passed_on(p.in[thread()], shared, lane(), warp_size, [] { warp_barrier(); });
  }
};

struct ClusterIds : Clusters<32, 8, 4> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    if (thread() == 0) {
      p.out[2 * block()] = uint32_t(cluster_rank());
      p.out[2 * block() + 1] = uint32_t(cluster_size());
    }
  }
};

// Three rounds through global memory between the blocks of a cluster.
struct ClusterBarrier : Clusters<64, 8, 4> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    const int first = block() - cluster_rank(), next = first + (cluster_rank() + 1) % cluster_size();
    uint32_t* rounds = p.out + 8 * threads;
    uint32_t value = p.in[block() * threads + thread()];
    for (int round = 0; round < 3; ++round) {
      uint32_t* through = rounds + round * 8 * threads;
      through[block() * threads + thread()] = value;
      cluster_barrier();
      value = through[next * threads + thread()];
    }
    p.out[block() * threads + thread()] = value;
  }
};

// Five phases of one mbarrier at which every thread arrives.
struct MbarrierPhases : OneBlock<64> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* barrier = arena.alloc<Mbarrier>(1);
    auto* halves = arena.alloc<uint32_t>(2 * threads);
    if (thread() == 0) init(barrier, threads);
    init_fence();
    block_barrier();
    uint32_t value = p.in[thread()];
    for (int phase = 0; phase < 5; ++phase) {
      uint32_t* shared = halves + phase % 2 * threads;
      shared[thread()] = value;
      expect(barrier, 0);
      wait(barrier, phase % 2);
      value = 3 * shared[(thread() + 1) % threads];
    }
    p.out[thread()] = value;
  }
};

// Four blocks send each other one word per thread and step, as the recurrence does: two buffers with an mbarrier each,
// and no other barrier between the blocks inside the loop. A buffer may be overwritten after its reader has sent the
// next step.
template <class Word>
struct StoreAsync : Clusters<64, 8, 4> {
  static constexpr int ranks = 4, steps = 5, size = sizeof(Word) / 4;
  RNNKERN_DEVICE static void run(const Problem& p) {
    SharedArena arena{shared_memory()};
    auto* barriers = arena.alloc<Mbarrier>(2);
    auto* received = arena.alloc<Word>(2 * ranks * threads);
    const int bytes = ranks * threads * int(sizeof(Word));
    if (thread() == 0) {
      for (int k = 0; k < 2; ++k) init(barriers + k, 1);
      init_fence();
      for (int k = 0; k < 2; ++k) expect(barriers + k, bytes);
    }
    cluster_barrier();
    uint32_t value = p.in[block() * threads + thread()];
    for (int step = 0; step < steps; ++step) {
      Word* to = received + step % 2 * ranks * threads;
      for (int rank = 0; rank < ranks; ++rank) {
        Word word;
        uint32_t parts[size];
        for (int k = 0; k < size; ++k) parts[k] = value + uint32_t(100 * k + rank);
        std::memcpy(&word, parts, sizeof word);
        store_async(map(to + cluster_rank() * threads + thread(), rank), word, map(barriers + step % 2, rank));
      }
      wait(barriers + step % 2, step / 2 % 2);
      value = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        uint32_t parts[size];
        std::memcpy(parts, to + rank * threads + (thread() + 1) % threads, sizeof parts);
        for (int k = 0; k < size; ++k) value += parts[k] * uint32_t(rank + k + 1);
      }
      block_barrier();
      if (thread() == 0 && step + 2 < steps) expect(barriers + step % 2, bytes);
    }
    p.out[block() * threads + thread()] = value;
    cluster_barrier();
  }
};

struct Shuffle : OneBlock<64> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    const float x = float_of(p.in[thread()]);
    p.out[thread()] = bits_of(shuffle(x, int(p.in[threads + thread()])));
  }
};

struct ShuffleXor : OneBlock<64> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    for (int k = 0; k < 5; ++k) p.out[k * threads + thread()] = shuffle_xor(p.in[thread()], 1 << k);
  }
};

// `in` has 32 rows of 16 bytes, then the index of the row that each lane gives.
template <bool transposed>
struct LoadMatrices : OneBlock<32> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    auto* rows = reinterpret_cast<Word16*>(shared_memory());
    const uint32_t* row = p.in + 4 * thread();
    rows[thread()] = {row[0], row[1], row[2], row[3]};
    block_barrier();
    uint32_t r[4];
    if constexpr (transposed) {
      load_matrices_transposed(r, rows + p.in[128 + thread()]);
    } else {
      load_matrices(r, rows + p.in[128 + thread()]);
    }
    for (int k = 0; k < 4; ++k) p.out[4 * thread() + k] = r[k];
  }
};

// `in` has, for one product after another, 4 registers of A, 2 of B and 4 of C for each lane.
template <class S>
struct Mma : Blocks<32, 64> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    const uint32_t* in = p.in + 10 * (32 * block() + thread());
    const uint32_t a[4] = {in[0], in[1], in[2], in[3]}, b[2] = {in[4], in[5]};
    float c[4] = {float_of(in[6]), float_of(in[7]), float_of(in[8]), float_of(in[9])};
    mma(c, a, b, S());
    for (int k = 0; k < 4; ++k) p.out[4 * (32 * block() + thread()) + k] = bits_of(c[k]);
  }
};

// Four groups of copies, waited for at depths 3, 1 and 0. A thread reads its own copies after its wait, and those of
// others after a block barrier.
template <int bytes>
struct CopyAsync : OneBlock<64> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    constexpr int words = bytes / 4, row = threads * words;
    uint32_t* shared = shared_words();
    const int mine = thread() * words;
    for (int k = 0; k < 4; ++k) {
      copy_async<bytes>(shared + k * row + mine, p.in + k * row + mine);
      commit_copies();
    }
    const auto read = [&](int k) {
      for (int w = 0; w < words; ++w) p.out[k * row + mine + w] = shared[k * row + mine + w];
    };
    wait_copies<3>();
    read(0);
    wait_copies<1>();
    read(1);
    read(2);
    wait_copies<0>();
    read(3);
    block_barrier();
    for (int k = 0; k < 4 * words; ++k) p.out[4 * row + mine * 4 + k] = shared[4 * row - 1 - mine * 4 - k];
  }
};

// Words that carry their step, between blocks without a barrier: three quarters are data, the last one is the tag.
struct RelaxedWords : AllAtOnce<64, 4> {
  static constexpr int ring = 4, steps = 6;
  RNNKERN_DEVICE static void run(const Problem& p) {
    auto* slots = reinterpret_cast<Word16*>(p.out) + ring * threads;
    uint32_t value = p.in[block() * threads + thread()];
    for (uint32_t step = 0; step < steps; ++step) {
      Word16* half = slots + step % 2 * ring * threads;
      store_relaxed(half + block() * threads + thread(), {value, value + 1, value + 2, step + 1});
      Word16 got{};
      // Reads from every block, so that no block can be two steps ahead of a reader of its slot.
      for (int from = 1; from <= ring; ++from) {
        const Word16* slot = half + (block() + from) % ring * threads + thread();
        spin_until([&] {
          const Word16 word = load_relaxed(slot);
          if (from == 1) got = word;
          return word.w == step + 1;
        });
      }
      value = got.x + 5 * got.y + 7 * got.z;
    }
    p.out[4 * (block() * threads + thread())] = value;
  }
};

// A ring of blocks that pass on plain data, with a flag that says when it is complete.
struct Flags : AllAtOnce<64, 4> {
  static constexpr int ring = 4, steps = 6;
  RNNKERN_DEVICE static void run(const Problem& p) {
    uint32_t* data = p.out + ring * threads;
    uint32_t* flags = data + steps * ring * threads;
    uint32_t value = p.in[block() * threads + thread()];
    const int from = (block() + 1) % ring;
    for (uint32_t step = 0; step < steps; ++step) {
      data[(step * ring + uint32_t(block())) * threads + uint32_t(thread())] = value;
      block_barrier();
      if (thread() == 0) store_release(flags + block(), step + 1);
      spin_until([&] { return load_acquire(flags + from) >= step + 1; });
      value = data[(step * ring + uint32_t(from)) * threads + uint32_t(threads - 1 - thread())] + 1;
    }
    p.out[block() * threads + thread()] = value;
  }
};

struct Trap : OneBlock<32> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    if (p.in[0] == uint32_t(thread())) trap();
  }
};

// Never ends, because the condition is always false.
struct Spins : OneBlock<32> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    spin_until([&] { return load_acquire(p.in) != p.in[0]; });
  }
};

// Converts all 65536 bit patterns.
template <class S>
struct Widen : Blocks<256, 256> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    const int i = block() * threads + thread();
    p.out[i] = bits_of(widen(S{uint16_t(i)}));
  }
};

// Converts 65536 floats.
template <class S>
struct Narrow : Blocks<256, 256> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    const int i = block() * threads + thread();
    p.out[i] = narrow<S>(float_of(p.in[i])).bits;
  }
};

// Rounds 65536 floats.
struct NearestTfloat32 : Blocks<256, 256> {
  RNNKERN_DEVICE static void run(const Problem& p) {
    const int i = block() * threads + thread();
    p.out[i] = bits_of(nearest_tfloat32(float_of(p.in[i])));
  }
};

}  // namespace rnnkern::device::conformance
