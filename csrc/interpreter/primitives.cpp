// The primitives. Compiled into every test library that interprets kernels, without the thread sanitizer (races.h).
#include "interpreter/primitives.h"

#include <algorithm>

#include "interpreter/fibers.h"

namespace rnnkern::device {

void interpret(const Shape& shape, const std::function<void()>& kernel) { machine().run(shape, kernel); }
void set_seed(uint64_t seed) { machine().seed(seed); }
int64_t bank_conflicts() { return machine().bank_conflicts; }

namespace {

[[noreturn]] void fail(const std::string& what, Place place) { machine().fail(what, place); }

// A convergence point of a warp: the last lane to arrive runs `together` on the data of all lanes, then all continue.
void converge(const char* what, Place place, void* mine, void (*together)(void* const* lanes), bool ordering = false) {
  Machine& m = machine();
  Fiber& fiber = m.fiber();
  m.converge(fiber.block->warps[size_t(fiber.thread / warp_size)], warp_size, what, place, mine, together, ordering);
}

}  // namespace

void pause_spin(Place place) {
  const Inside inside;
  machine().pause_spin(place);
}
void end_spin() { machine().end_spin(); }

void trap(Place place) {
  const Inside inside;
  fail("trap", place);
}

int thread() { return machine().fiber().thread; }
int block() { return int(machine().fiber().block->index); }
int blocks() { return int(machine().shape().blocks); }
int cluster_rank() { return machine().fiber().block->rank; }
int cluster_size() { return machine().shape().cluster; }
char* shared_memory() { return machine().fiber().block->shared; }

// ---- convergence points

void block_barrier(Place place) {
  const Inside inside;
  Machine& m = machine();
  m.converge(m.fiber().block->barrier, size_t(m.shape().threads), "block_barrier", place, nullptr, nullptr, true);
}

void warp_barrier(Place place) {
  const Inside inside;
  converge("warp_barrier", place, nullptr, nullptr, true);
}

void cluster_barrier(Place place) {
  const Inside inside;
  Machine& m = machine();
  Cluster& cluster = *m.fiber().block->cluster;
  const auto share = [](void* const*) {
    std::vector<Mbarrier*>& fenced = machine().fiber().block->cluster->fenced;
    for (Mbarrier* barrier : fenced) barrier->fence = uint32_t(Fence::shared);
    fenced.clear();
  };
  m.converge(cluster.barrier, size_t(m.shape().threads) * cluster.blocks.size(), "cluster_barrier", place, nullptr,
             share, true);
}

uint32_t exchange(const char* what, uint32_t x, int from, Place place) {
  const Inside inside;
  struct Lane {
    uint32_t given, taken;
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

// ---- ldmatrix and mma

namespace {

template <class T>
T bits(uint32_t x, int half) {
  const uint16_t two = uint16_t(x >> (16 * half));
  return T{two};
}

struct Rows {
  uint32_t r[4];
  const char* row;
  const char* read[8];  // where the two halves of each register are from
};

// How many of a matrix's rows are read after another one, because different rows in the same banks are read one after
// the other. A row has 16 bytes, 4 of the 32 banks.
int conflicts(const char* const (&rows)[8]) {
  const char* different[8][8];  // by banks
  int counts[8] = {}, most = 1;
  for (const char* row : rows) {
    const uintptr_t banks = reinterpret_cast<uintptr_t>(row) / 16 % 8;
    const char** const end = different[banks] + counts[banks];
    if (std::find(different[banks], end, row) != end) continue;
    *end = row;
    most = std::max(most, ++counts[banks]);
  }
  return most - 1;
}

// Register m of lane l holds elements (l / 4, 2 (l % 4)) and the one after it of matrix m, or of its transpose.
template <bool transposed>
void distribute(void* const* lanes) {
  for (int m = 0; m < 4; ++m) {
    const char* rows[8];
    for (int i = 0; i < 8; ++i) rows[i] = static_cast<Rows*>(lanes[8 * m + i])->row;
    machine().bank_conflicts += conflicts(rows);
    for (int l = 0; l < warp_size; ++l) {
      Rows& lane = *static_cast<Rows*>(lanes[l]);
      uint16_t halves[2];
      for (int half = 0; half < 2; ++half) {
        const int i = l / 4, j = 2 * (l % 4) + half;
        const char* from = transposed ? rows[j] + 2 * i : rows[i] + 2 * j;
        std::memcpy(&halves[half], from, 2);
        lane.read[2 * m + half] = from;
      }
      lane.r[m] = halves[0] | uint32_t(halves[1]) << 16;
    }
  }
}

void load(uint32_t (&r)[4], const void* row, Place place, const char* what, void (*together)(void* const*)) {
  Machine& m = machine();
  if (!m.inside_shared(*m.fiber().block, row, 16)) fail(std::string(what) + ": the row is not in shared memory", place);
  if (reinterpret_cast<uintptr_t>(row) % 16) fail(std::string(what) + ": the row is not on 16 bytes", place);
  Rows mine{{}, static_cast<const char*>(row), {}};
  converge(what, place, &mine, together);
  for (const char* half : mine.read) m.fiber().seen.reads(half, 2);
  std::copy(mine.r, mine.r + 4, r);
}

struct Fragments {
  float* c;
  const uint32_t *a, *b;
};

// C (16 x 8) += A (16 x K) B (K x 8). Lane l = 4 i + j holds
//   of C: rows i, i + 8, columns 2 j, 2 j + 1;
//   of A, 16-bit: registers over rows (i, i + 8) and columns (2 j, 2 j + 8), two columns each; of B likewise rows;
//   of A, tf32: rows (i, i + 8), columns (j, j + 4); of B rows (j, j + 4), column i.
template <class S>
void multiply(void* const* lanes) {
  constexpr bool wide = sizeof(S) == 2;
  constexpr int depth = wide ? 16 : 8;
  float A[16][depth], B[depth][8];
  for (int l = 0; l < warp_size; ++l) {
    const Fragments& f = *static_cast<Fragments*>(lanes[l]);
    const int i = l / 4, j = l % 4;
    for (int k = 0; k < 4; ++k) {
      const int row = i + 8 * (k % 2);
      if constexpr (wide) {
        for (int half = 0; half < 2; ++half) A[row][2 * j + 8 * (k / 2) + half] = widen(bits<S>(f.a[k], half));
      } else {
        const uint32_t rounded = f.a[k] & 0xffffe000;
        std::memcpy(&A[row][j + 4 * (k / 2)], &rounded, 4);
      }
    }
    for (int k = 0; k < 2; ++k) {
      if constexpr (wide) {
        for (int half = 0; half < 2; ++half) B[2 * j + 8 * k + half][i] = widen(bits<S>(f.b[k], half));
      } else {
        const uint32_t rounded = f.b[k] & 0xffffe000;
        std::memcpy(&B[j + 4 * k][i], &rounded, 4);
      }
    }
  }
  for (int l = 0; l < warp_size; ++l) {
    const Fragments& f = *static_cast<Fragments*>(lanes[l]);
    for (int k = 0; k < 4; ++k) {
      const int row = l / 4 + 8 * (k / 2), column = 2 * (l % 4) + k % 2;
      for (int d = 0; d < depth; ++d) f.c[k] += A[row][d] * B[d][column];
    }
  }
}

template <class S>
void product(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
  Fragments mine{c, a, b};
  converge("mma", place, &mine, multiply<S>);
}

}  // namespace

void load_matrices(uint32_t (&r)[4], const void* row, Place place) {
  const Inside inside;
  load(r, row, place, "load_matrices", distribute<false>);
}
void load_matrices_transposed(uint32_t (&r)[4], const void* row, Place place) {
  const Inside inside;
  load(r, row, place, "load_matrices_transposed", distribute<true>);
}
void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bfloat16, Place place) {
  const Inside inside;
  product<bfloat16>(c, a, b, place);
}
void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], float16, Place place) {
  const Inside inside;
  product<float16>(c, a, b, place);
}
void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], tfloat32, Place place) {
  const Inside inside;
  product<tfloat32>(c, a, b, place);
}

// Adding half a unit of the last kept bit rounds correctly: a carry increments the exponent, if needed up to infinity.
float nearest_tfloat32(float x) {
  if (!std::isfinite(x)) return x;
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x1000) & 0xffffe000;
  std::memcpy(&x, &bits, 4);
  return x;
}

// ---- mbarriers and stores into other blocks

namespace {

Mbarrier* checked(Mbarrier* barrier, const char* what, Place place) {
  Machine& m = machine();
  if (!m.inside_shared(*m.fiber().block, barrier, sizeof *barrier)) {
    fail(std::string(what) + ": the barrier is not in this block's shared memory", place);
  }
  if (barrier->arrivals == 0xffff) fail(std::string(what) + ": the barrier was never initialised", place);
  m.fiber().seen.reads(barrier, sizeof *barrier);
  return barrier;
}

}  // namespace

void init(Mbarrier* barrier, int arrivals, Place place) {
  const Inside inside;
  Machine& m = machine();
  if (!m.inside_shared(*m.fiber().block, barrier, sizeof *barrier)) fail("init: not in shared memory", place);
  if (arrivals < 1 || arrivals > 1024) fail("init: the number of arrivals", place);
  *barrier = {uint16_t(arrivals), uint16_t(arrivals), 0, uint32_t(Fence::none), 0};
  m.fiber().initialised.push_back(barrier);
  m.fiber().seen.writes(barrier, sizeof *barrier);
}

void init_fence() {
  const Inside inside;
  Fiber& fiber = machine().fiber();
  for (Mbarrier* barrier : fiber.initialised) {
    barrier->fence = uint32_t(Fence::fenced);
    fiber.block->cluster->fenced.push_back(barrier);
  }
  fiber.initialised.clear();
}

void expect(Mbarrier* barrier, int bytes, Place place) {
  const Inside inside;
  checked(barrier, "expect", place);
  if (barrier->pending == 0) fail("expect: more arrivals than the phase has", place);
  if (bytes < 0 || barrier->bytes + bytes >= most_bytes) {
    fail("expect: a phase counts less than " + std::to_string(most_bytes) + " bytes", place);
  }
  barrier->bytes += bytes;
  --barrier->pending;
  machine().fiber().seen.releases(barrier);
  machine().settle(barrier, *machine().fiber().block);
}

void wait(Mbarrier* barrier, int parity, Place place) {
  const Inside inside;
  checked(barrier, "wait", place);
  machine().wait(barrier, parity, place);
  machine().fiber().seen.acquires(barrier);
}

Remote map(const void* pointer, int rank, Place place) {
  const Inside inside;
  Machine& m = machine();
  Block& mine = *m.fiber().block;
  if (!m.inside_shared(mine, pointer, 0)) fail("map: the pointer is not in this block's shared memory", place);
  if (rank < 0 || rank >= m.shape().cluster) fail("map: no such rank in the cluster", place);
  return {mine.cluster->blocks[size_t(rank)]->shared + (static_cast<const char*>(pointer) - mine.shared)};
}

void store_async(Remote to, const void* value, int bytes, Remote on, Place place) {
  const Inside inside;
  Machine& m = machine();
  if (m.shape().cluster == 1) fail("store_async: the launch has no clusters", place);
  Cluster& cluster = *m.fiber().block->cluster;
  const auto holder = std::find_if(cluster.blocks.begin(), cluster.blocks.end(),
                                   [&](Block* block) { return m.inside_shared(*block, to.address, bytes); });
  if (holder == cluster.blocks.end()) fail("store_async: not in the cluster's shared memory", place);
  if (!m.inside_shared(**holder, on.address, sizeof(Mbarrier))) {
    fail("store_async: the barrier is in another block than the data", place);
  }
  if (reinterpret_cast<uintptr_t>(to.address) % uintptr_t(bytes)) fail("store_async: not aligned", place);
  if ((*holder)->exited) fail("store_async: the block has threads that ended", place);
  Store store{to.address, {}, bytes, reinterpret_cast<Mbarrier*>(on.address), *holder, place};
  if (store.on->arrivals == 0xffff) fail("store_async: the barrier was never initialised", place);
  if (store.on->fence == uint32_t(Fence::none)) fail("store_async: no init_fence after init of the barrier", place);
  if (store.on->fence == uint32_t(Fence::fenced)) fail("store_async: no cluster_barrier after init_fence", place);
  std::memcpy(store.value, value, size_t(bytes));
  const races::Thread& seen = m.fiber().seen;
  seen.reads(store.on, sizeof *store.on);
  seen.writes(store.to, size_t(bytes));
  seen.releases(store.on);
  m.send(store);
}

// ---- cp.async

namespace {

// A copy may read and write at any time until it has been waited for.
void see(const Fiber& fiber, const void* from, void* to, int bytes) {
  fiber.seen.reads(from, size_t(bytes));
  fiber.seen.writes(to, size_t(bytes));
}

}  // namespace

void copy_async(void* to, const void* from, int bytes, Place place) {
  const Inside inside;
  Machine& m = machine();
  Fiber& fiber = m.fiber();
  if (!m.inside_shared(*fiber.block, to, bytes)) fail("copy_async: the target is not in shared memory", place);
  if (reinterpret_cast<uintptr_t>(to) % uintptr_t(bytes) || reinterpret_cast<uintptr_t>(from) % uintptr_t(bytes)) {
    fail("copy_async: not aligned", place);
  }
  see(fiber, from, to, bytes);
  if (m.copies_at_once()) std::memcpy(to, from, size_t(bytes));
  fiber.copies.push_back({static_cast<char*>(to), static_cast<const char*>(from), bytes, fiber.commits});
}

void commit_copies() { ++machine().fiber().commits; }

// Depending on the seed, copies arrive at once or as late as possible, so that data that need not be there yet is not.
void wait_copies(int most) {
  const Inside inside;
  Fiber& fiber = machine().fiber();
  while (!fiber.copies.empty() && fiber.copies.front().commit < fiber.commits - most) {
    const Copy& copy = fiber.copies.front();
    see(fiber, copy.from, copy.to, copy.bytes);
    if (!machine().copies_at_once()) std::memcpy(copy.to, copy.from, size_t(copy.bytes));
    fiber.copies.pop_front();
  }
}

// ---- words and flags

Word16 load_relaxed(const Word16* from) {
  const Inside inside;
  machine().deliver_word(from);
  machine().fiber().seen.reads_relaxed(from);
  return *from;
}

// Stores of a cluster to one word keep their order.
void store_relaxed(Word16* to, Word16 x, Place place) {
  const Inside inside;
  Machine& m = machine();
  m.deliver_word(to);
  m.fiber().seen.writes_relaxed(to);
  Store store{reinterpret_cast<char*>(to), {}, sizeof x, nullptr, nullptr, place};
  std::memcpy(store.value, &x, sizeof x);
  m.send(store);
}

uint32_t load_acquire(const uint32_t* from) {
  const Inside inside;
  machine().fiber().seen.reads_flag(from);
  return *from;
}

void store_release(uint32_t* to, uint32_t x) {
  const Inside inside;
  Machine& m = machine();
  m.deliver_words();
  m.fiber().seen.writes_flag(to);
  *to = x;
  m.stored();
}

}  // namespace rnnkern::device
