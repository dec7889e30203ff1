// The products of the block kernels: the weights of one head, which a block keeps for all steps, and the distribution
// of the result over threads. D is the head size padded to 32, 64 or 128; the padding of weights and operands is zero.
//
// Every tile has
//   threads, columns, values   threads and sequences of a block; results per thread, each of one unit and column
//   x_size                     elements of the operand, (columns, pitch), in shared memory
//   unit(v), column(v)         of this thread's result v
//   shared_size                bytes of weights in shared memory, a multiple of 16
//   load(R, d, memory)         loads the weights, (gates*d, d)
#pragma once

#include "recurrence/cuda/mma.cuh"

namespace rnnkern {

// Element (gate, unit, column) of a head's R (gates, d, d); zero in the padding.
template <class S>
RNNKERN_DEVICE S weight(const S* R, int d, int gate, int unit, int column, int gates) {
  return gate < gates && unit < d && column < d ? R[(gate * d + unit) * d + column] : S{};
}

// The matrix (gates*d, d) of a head. With many heads, its offset exceeds an int.
template <class S>
RNNKERN_DEVICE const S* matrix_of_head(const S* R, int head, int gates, int d) {
  return R + int64_t(head) * (gates * d * d);
}

// ---- 16-bit storage: tensor cores, 8 sequences

// r = R h. The 16 rows of a fragment are one gate of 16 units or, with even numbers of gates and D < 128, two gates of
// 8 units, so that a thread always gets all gates of a unit. A product has the first `first_gates` gates, or the rest.
template <class S, int gates, int D, int first_gates>
struct MmaForward {
  static constexpr int halves = gates % 2 || first_gates % 2 || D == 128 ? 2 : 1, warp_units = 8 * halves,
                       tiles = gates * halves / 2, depth = D / 16;
  static constexpr int threads = D / warp_units * 32, columns = 8, values = 2 * halves;
  static constexpr int pitch = D + 8, x_size = columns * pitch;  // 16 bytes of padding avoid bank conflicts of ldmatrix
  using Weights = MmaWeights<tiles * depth, threads>;
  static constexpr int64_t shared_size = Weights::shared_size;

  Weights weights;

  RNNKERN_DEVICE static int unit(int v) { return device::warp() * warp_units + 8 * (v / 2) + device::lane() / 4; }
  RNNKERN_DEVICE static int column(int v) { return 2 * (device::lane() % 4) + v % 2; }
  RNNKERN_DEVICE static int smem_offset(int column, int unit) { return column * pitch + unit; }

  RNNKERN_DEVICE void load(const S* R, int d, char* memory) {
    weights.load(memory, [&](int n, int i) {
      const int k = n / tiles, m = n % tiles, gate = halves == 2 ? m : 2 * m + i % 2;
      const int row = unit(halves == 2 ? 2 * (i % 2) : 0);
      const int column = 16 * k + 8 * (i / 2) + 2 * (device::lane() % 4);
      return pair(weight(R, d, gate, row, column, gates), weight(R, d, gate, row, column + 1, gates));
    });
  }

  // Sets r[v][g] for gates first..last-1.
  template <int first, int last>
  RNNKERN_DEVICE void multiply(const S* x, float (&r)[values][gates]) const {
    static_assert(halves == 2 || (first % 2 == 0 && last % 2 == 0), "a fragment's two gates belong together");
    constexpr int from = first * halves / 2, count = (last - first) * halves / 2;
    float c[mma_chains(count, depth)][count][4] = {};
    weights.template multiply_all<S, 0, depth>(c, x, pitch, [](int k, int m) { return k * tiles + from + m; });
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      RNNKERN_UNROLL
      for (int g = first; g < last; ++g) {
        r[v][g] = halves == 2 ? c[0][g - from][v] : c[0][g / 2 - from][2 * (g % 2) + v];
      }
    }
  }
};

// dh = R^T dr, with fragments of 16 units, over all gates.
template <class S, int gates, int D>
struct MmaBackward {
  static constexpr int depth = gates * D / 16;
  static constexpr int threads = D / 16 * 32, columns = 8, values = 4;
  static constexpr int pitch = gates * D + 8, x_size = columns * pitch;
  using Weights = MmaWeights<depth, threads>;
  static constexpr int64_t shared_size = Weights::shared_size;

  Weights weights;

  RNNKERN_DEVICE static int unit(int v) { return device::warp() * 16 + 8 * (v / 2) + device::lane() / 4; }
  RNNKERN_DEVICE static int column(int v) { return 2 * (device::lane() % 4) + v % 2; }
  RNNKERN_DEVICE static int smem_offset(int column, int gate, int unit) { return column * pitch + gate * D + unit; }

  RNNKERN_DEVICE void load(const S* R, int d, char* memory) {
    weights.load(memory, [&](int k, int i) {
      const int gate = 16 * k / D, column = unit(2 * (i % 2));
      const int row = 16 * k % D + 8 * (i / 2) + 2 * (device::lane() % 4);
      return pair(weight(R, d, gate, row, column, gates), weight(R, d, gate, row + 1, column, gates));
    });
  }

  // Sets dh[v], from gates first..last-1.
  template <int first, int last>
  RNNKERN_DEVICE void multiply(const S* x, float (&dh)[values]) const {
    constexpr int from = first * D / 16, to = last * D / 16;
    float c[mma_chains(1, to - from)][1][4] = {};
    weights.template multiply_all<S, from, to>(c, x, pitch, [](int k, int) { return k; });
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) dh[v] = c[0][0][v];
  }
};

// ---- float32: fused multiply-adds, 4 sequences

struct alignas(16) Float4 {
  float x[4];
};

// A thread's weights, `rows` rows of `chunks` times 4 columns: as many in registers as the rest of the kernel allows,
// and the others in shared memory, where each thread reads its own 16 bytes.
template <int rows, int chunks, int threads>
struct FmaWeights {
  // 4-byte registers. Fewer for a single row, for which the compiler aims at 64 registers and two blocks per
  // multiprocessor.
  static constexpr int registers = threads <= 256 ? 128 : rows > 1 ? 32 : 24;
  static constexpr int fits = registers / (4 * rows), kept = chunks < fits ? chunks : fits;
  static constexpr int64_t shared_size = int64_t(chunks - kept) * rows * threads * 16;

  float w[kept][rows][4] = {};
  Float4* rest;

  // `weight(row, chunk, i)` is the weight of column 4*chunk + i of this thread.
  template <class Weight>
  RNNKERN_DEVICE void load(char* memory, Weight weight) {
    rest = reinterpret_cast<Float4*>(memory) + device::thread();
    RNNKERN_ROLLED
    for (int j = 0; j < chunks; ++j) {  // see MmaWeights::load
      Float4 loaded[rows];
      RNNKERN_UNROLL
      for (int m = 0; m < rows; ++m) {
        RNNKERN_UNROLL
        for (int i = 0; i < 4; ++i) loaded[m].x[i] = weight(m, j, i);
      }
      RNNKERN_UNROLL
      for (int m = 0; m < rows; ++m) {
        RNNKERN_UNROLL
        for (int here = 0; here < kept; ++here) {
          RNNKERN_UNROLL
          for (int i = 0; i < 4; ++i) w[here][m][i] = here == j ? loaded[m].x[i] : w[here][m][i];
        }
        if (j >= kept) rest[((j - kept) * rows + m) * threads] = loaded[m];
      }
    }
  }

  // acc[m][c] += sum over chunks from..to-1 of weights times x; `at(j, c)` points to chunk j of column c.
  template <int from, int to, int first_row, int last_row, int columns, class At>
  RNNKERN_DEVICE void multiply(float (&acc)[last_row - first_row][columns], At at) const {
    RNNKERN_UNROLL
    for (int j = from; j < to && j < kept; ++j) {
      RNNKERN_UNROLL
      for (int c = 0; c < columns; ++c) {
        const Float4 x = *at(j, c);
        RNNKERN_UNROLL
        for (int m = first_row; m < last_row; ++m) add(acc[m - first_row][c], w[j][m], x);
      }
    }
    RNNKERN_ROLLED  // if unrolled, loads of x of many chunks are in flight at once and need too many registers
        for (int j = from > kept ? from : kept; j < to; ++j) {
      Float4 x[columns];
      RNNKERN_UNROLL
      for (int c = 0; c < columns; ++c) x[c] = *at(j, c);
      RNNKERN_UNROLL
      for (int m = first_row; m < last_row; ++m) {
        const Float4 weights = rest[((j - kept) * rows + m) * threads];
        RNNKERN_UNROLL
        for (int c = 0; c < columns; ++c) add(acc[m - first_row][c], weights.x, x[c]);
      }
    }
  }

  RNNKERN_DEVICE static void add(float& sum, const float (&weights)[4], const Float4& x) {
    RNNKERN_UNROLL
    for (int i = 0; i < 4; ++i) sum += weights[i] * x.x[i];
  }
};

// Adds `count` sums over pairs of lanes that differ in bit `mask`: the lane with the bit clear keeps the first half of
// the sums, the other lane the second half.
template <int count>
RNNKERN_DEVICE void halve(float* sums, int mask) {
  const bool upper = device::lane() & mask;
  RNNKERN_UNROLL
  for (int i = 0; i < count / 2; ++i) {
    const float give = upper ? sums[i] : sums[i + count / 2], keep = upper ? sums[i + count / 2] : sums[i];
    sums[i] = keep + device::shuffle_xor(give, mask);
  }
}

// r = R h: four lanes share a unit and split its columns; each ends with all gates of one sequence.
template <int gates, int D>
struct FmaForward {
  static constexpr int threads = 4 * D, columns = 4, values = 1;
  static constexpr int pitch = D, x_size = columns * pitch;
  using Weights = FmaWeights<gates, D / 16, threads>;
  static constexpr int64_t shared_size = Weights::shared_size;

  Weights weights;

  RNNKERN_DEVICE static int unit(int) { return device::thread() / 4; }
  RNNKERN_DEVICE static int column(int) { return device::thread() % 4; }
  RNNKERN_DEVICE static int smem_offset(int column, int unit) { return column * pitch + unit; }

  RNNKERN_DEVICE void load(const float* R, int d, char* memory) {
    const int part = device::thread() % 4;
    weights.load(memory,
                 [&](int gate, int j, int i) { return weight(R, d, gate, unit(0), 16 * j + 4 * part + i, gates); });
  }

  template <int first, int last>
  RNNKERN_DEVICE void multiply(const float* x, float (&r)[values][gates]) const {
    float acc[last - first][columns] = {};
    const float* mine = x + 4 * (device::thread() % 4);
    weights.template multiply<0, D / 16, first, last>(
        acc, [&](int j, int c) { return reinterpret_cast<const Float4*>(mine + c * pitch + 16 * j); });
    RNNKERN_UNROLL
    for (int g = first; g < last; ++g) {
      halve<4>(acc[g - first], 2);
      halve<2>(acc[g - first], 1);
      r[0][g] = acc[g - first][0];
    }
  }
};

// dh = R^T dr: sixteen lanes share four units and split the rows of R; each ends with one unit of one sequence.
template <int gates, int D>
struct FmaBackward {
  static constexpr int length = (gates * D + 63) / 64 * 64;
  static constexpr int threads = 4 * D, columns = 4, values = 1;
  static constexpr int pitch = length, x_size = columns * pitch;
  using Weights = FmaWeights<4, length / 64, threads>;
  static constexpr int64_t shared_size = Weights::shared_size;

  Weights weights;

  RNNKERN_DEVICE static int unit(int) { return device::thread() / 4; }
  RNNKERN_DEVICE static int column(int) { return device::thread() % 4; }
  RNNKERN_DEVICE static int smem_offset(int column, int gate, int unit) { return column * pitch + gate * D + unit; }

  RNNKERN_DEVICE void load(const float* R, int d, char* memory) {
    const int part = device::thread() % 16, units = device::thread() / 16 * 4;
    weights.load(memory, [&](int m, int j, int i) {
      const int row = 64 * j + 4 * part + i;
      return weight(R, d, row / D, row % D, units + m, gates);
    });
  }

  template <int first, int last>
  RNNKERN_DEVICE void multiply(const float* x, float (&dh)[values]) const {
    static_assert(first * D % 64 == 0 && (last == gates || last * D % 64 == 0), "whole chunks");
    float acc[4][columns] = {};
    const float* mine = x + 4 * (device::thread() % 16);
    weights.template multiply<first * D / 64, (last * D + 63) / 64, 0, 4>(
        acc, [&](int j, int c) { return reinterpret_cast<const Float4*>(mine + c * pitch + 64 * j); });
    float all[16];
    RNNKERN_UNROLL
    for (int i = 0; i < 16; ++i) all[i] = acc[i / 4][i % 4];
    halve<16>(all, 8);
    halve<8>(all, 4);
    halve<4>(all, 2);
    halve<2>(all, 1);
    dh[0] = all[0];
  }
};

// ---- the tiles of a kernel

template <class S, int gates, int D, int first_gates>
struct Tiles {
  using Forward = MmaForward<S, gates, D, first_gates>;
  using Backward = MmaBackward<S, gates, D>;
};

template <int gates, int D, int first_gates>
struct Tiles<float, gates, D, first_gates> {
  using Forward = FmaForward<gates, D>;
  using Backward = FmaBackward<gates, D>;
};

// What all threads of a block kernel do. A thread keeps arrays in objects of their own: their indices are only known
// after loops have been unrolled, and the compiler would leave scalars beside them in memory until then.
template <class Kernel>
RNNKERN_DEVICE void run_block(const typename Kernel::Problem& p) {
  typename Kernel::Tile tile;
  typename Kernel::Values own;
  Kernel thread(p, tile, own);
  thread.run_steps();
  thread.end();
}

}  // namespace rnnkern
