// The products of a cluster kernel. The blocks of a cluster divide the units of a dense R; each keeps the rows of all
// gates of its units for all steps. D is H padded; the padding of weights and operands is zero.
//
// Every tile has
//   threads, columns   threads of a block; maximum number of sequences of a group
//   x_size             elements of the operand, in shared memory
//   shared_size        bytes of weights in shared memory
//   load(R, hidden, rank, memory)
// The forward multiplies h of all units by the block's rows, which gives r of the block's own units:
//   values             results per thread, each of one unit and sequence
//   unit(v), column(v) of this thread's result v, which exists if column(v) is below the number of sequences
//   idle(v, n)         with n sequences, no thread of the warp has a result v
//   writes()           whether this thread stores the result; false for duplicates
//   sums_size, use     bytes of partial sums, and a function that sets their place
//   multiply, result   called by all threads, with a block barrier if they exchange sums; then r of value v
//   gather(h), member  16 bytes of neighbouring units, in each of the `members` lanes that contribute; index among them
// The backward multiplies dr of the block's own units by the same rows, transposed. It passes the result, the block's
// part of dh of all units, to `send(unit, column, word)`, 4 units at a time.
#pragma once

#include "recurrence/cuda/block_tile.cuh"

namespace rnnkern {

constexpr int enough_tiles = 3;  // for `mma_chains`, since there is a second warp on each sub-core

// Blocks of a cluster: as few as can hold R, since more of the smaller clusters fit on the device.
template <class M>
constexpr int cluster_blocks(int D) {
  return D <= (sizeof(Stored<M>) == 4 ? 256 : 384) ? 8 : 16;
}

RNNKERN_HOST_DEVICE constexpr int round_up(int x, int to) { return (x + to - 1) / to * to; }

template <class Cell, class M, int D>
struct ClusterShape {
  static constexpr int blocks = cluster_blocks<M>(D), units = D / blocks, gates = Cell::recurrent;
  // Rows of the first product, and of the second if there is one.
  static constexpr int first_rows = Cell::first_gates * units, second_rows = (gates - Cell::first_gates) * units;
  static_assert(units % 8 == 0 && (second_rows == 0 || first_rows % 16 == 0));
};

// The unit and the sequence of a thread's value v; units vary fastest.
template <int threads, int units>
struct ClusterPairs {
  RNNKERN_DEVICE static int unit(int v) { return (device::thread() + v * threads) % units; }
  RNNKERN_DEVICE static int column(int v) { return (device::thread() + v * threads) / units; }
  RNNKERN_DEVICE static bool idle(int v, int n) { return device::warp() * 32 + v * threads >= n * units; }
};

// ---- tensor cores, 8 sequences; products of bfloat16, float16 or tfloat32

// Warps divide the rows of R by `row_warps` and its columns by `parts`, whose sums are added in shared memory.
template <class Cell, class M, int D>
struct ClusterMmaForward : ClusterShape<Cell, M, D>, ClusterPairs<256, ClusterShape<Cell, M, D>::units> {
  using S = Stored<M>;
  using Shape = ClusterShape<Cell, M, D>;
  using K = Along<M>;
  using Shape::units, Shape::gates;
  static constexpr int threads = 256, columns = 8, values = (units * columns + threads - 1) / threads;
  static constexpr int tiles[2] = {round_up(Shape::first_rows, 16) / 16, round_up(Shape::second_rows, 16) / 16};
  static constexpr int row_warps = (tiles[0] | tiles[1]) % 4 == 0 ? 4 : (tiles[0] | tiles[1]) % 2 == 0 ? 2 : 1;
  static constexpr int parts = 8 / row_warps, depth = D / K::fragment / parts;
  static constexpr int own[2] = {tiles[0] / row_warps, tiles[1] / row_warps}, own_all = own[0] + own[1];
  static constexpr int pitch = D + K::word, x_size = columns * pitch;  // padding avoids bank conflicts of ldmatrix
  static constexpr int rows = 16 * (tiles[0] > tiles[1] ? tiles[0] : tiles[1]), sum_pitch = rows + 4;
  // With 24 tfloat32 fragments the compiler aims at 128 registers, for two blocks per multiprocessor, and spills.
  static constexpr int registers = K::one == 1 && own_all * depth == 24 ? 20
                                   : own_all <= 3                       ? (K::one == 1 ? 43 : 44)
                                                                        : 40;
  using Weights = MmaWeights<own_all * depth, threads, registers>;
  static constexpr int64_t shared_size = Weights::shared_size, sums_size = int64_t(parts) * columns * sum_pitch * 4;

  Weights weights;
  float* sums;  // (parts, columns, rows): read before a thread sends its results, overwritten when all have sent

  RNNKERN_DEVICE void use(char* memory) { sums = reinterpret_cast<float*>(memory); }

  RNNKERN_DEVICE static int row_warp() { return device::warp() % row_warps; }
  RNNKERN_DEVICE static int part() { return device::warp() / row_warps; }
  RNNKERN_DEVICE static int smem_offset(int column, int unit) { return column * pitch + unit; }
  RNNKERN_DEVICE static bool writes() { return true; }
  static constexpr int members = K::word;
  RNNKERN_DEVICE static int member() { return device::lane() % members; }

  // Lanes exchange values until each has 16 bytes.
  RNNKERN_DEVICE static device::Word16 gather(S h) {
    constexpr int last = members / 2;
    uint32_t mine = bits_of(h);
    if constexpr (K::one == 2) mine = pair_of_lanes(mine, 1);
    const uint32_t beside = device::shuffle_xor(mine, last / 2);
    const uint32_t low = device::lane() & last / 2 ? beside : mine, high = device::lane() & last / 2 ? mine : beside;
    const uint32_t low2 = device::shuffle_xor(low, last), high2 = device::shuffle_xor(high, last);
    return device::lane() & last ? device::Word16{low2, high2, low, high} : device::Word16{low, high, low2, high2};
  }

  RNNKERN_DEVICE void load(const S* R, int hidden, int rank, char* memory) {
    weights.load(memory, [&](int n, int i) {
      const int k = n / own_all, m = n % own_all, second = m >= own[0];
      const int tile = second ? row_warp() * own[1] + m - own[0] : row_warp() * own[0] + m;
      const int row = 16 * tile + device::lane() / 4 + 8 * (i % 2);
      const bool real = row < (second ? Shape::second_rows : Shape::first_rows);
      const int gate = !real ? gates : row / units + (second ? Cell::first_gates : 0);
      const int unit = rank * units + row % units;
      const int column = K::fragment * (part() * depth + k) + K::word * (i / 2) + K::one * (device::lane() % 4);
      return fragment_register<M>([&](int j) { return weight(R, hidden, gate, unit, column + j, gates); });
    });
  }

  template <int first, int last>
  RNNKERN_DEVICE void multiply(const S* x, int n) {
    constexpr int product = first > 0, from = product ? own[0] : 0, count = own[product];
    float c[mma_chains(count, depth, enough_tiles)][count][4] = {};
    weights.template multiply_all<M, 0, depth>(c, x + K::fragment * depth * part(), pitch,
                                               [](int k, int m) { return k * own_all + from + m; });
    float* to = sums + part() * columns * sum_pitch + 16 * count * row_warp() + device::lane() / 4;
    RNNKERN_UNROLL
    for (int m = 0; m < count; ++m) {
      RNNKERN_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int column = 2 * (device::lane() % 4) + i % 2;
        if (column < n) to[column * sum_pitch + 16 * m + 8 * (i / 2)] = c[0][m][i];
      }
    }
    device::block_barrier();
  }

  // Sets r[g] of value v, for gates first..last-1.
  template <int first, int last>
  RNNKERN_DEVICE void result(int v, float (&r)[gates]) const {
    const float* from = sums + this->column(v) * sum_pitch + this->unit(v);
    RNNKERN_UNROLL
    for (int g = first; g < last; ++g) {
      r[g] = from[(g - first) * units];
      RNNKERN_UNROLL
      for (int k = 1; k < parts; ++k) r[g] += from[k * columns * sum_pitch + (g - first) * units];
    }
  }
};

// Warps divide the units, so that no sums are added across warps.
template <class Cell, class M, int D>
struct ClusterMmaBackward : ClusterShape<Cell, M, D> {
  using S = Stored<M>;
  using Shape = ClusterShape<Cell, M, D>;
  using K = Along<M>;
  using Shape::units, Shape::gates;
  static constexpr int threads = 256, columns = 8, own = D / 16 / 8;
  static constexpr int depth = round_up(gates * units, K::fragment) / K::fragment;
  static constexpr int pitch = K::fragment * depth + K::word, x_size = columns * pitch;
  using Weights = MmaWeights<own * depth, threads, gates == 3 || own == 5 || own == 8 ? 36 : 38>;
  static constexpr int64_t shared_size = Weights::shared_size;

  Weights weights;

  RNNKERN_DEVICE static int smem_offset(int column, int gate, int unit) { return column * pitch + gate * units + unit; }

  RNNKERN_DEVICE void load(const S* R, int hidden, int rank, char* memory) {
    weights.load(memory, [&](int n, int i) {
      const int k = n / own, column = 16 * (device::warp() * own + n % own) + device::lane() / 4 + 8 * (i % 2);
      // In 16-bit types `row` and `units` are even, so that rows `row` and `row + 1` belong to the same gate.
      const int row = K::fragment * k + K::word * (i / 2) + K::one * (device::lane() % 4);
      const int gate = row / units, unit = rank * units + row % units;
      return fragment_register<M>([&](int j) { return weight(R, hidden, gate, unit + j, column, gates); });
    });
  }

  template <int first, int last, class Send>
  RNNKERN_DEVICE void multiply(const S* x, int n, Send send) const {
    constexpr int from = first * units / K::fragment, to = round_up(last * units, K::fragment) / K::fragment;
    float c[mma_chains(own, to - from, enough_tiles)][own][4] = {};
    weights.template multiply_all<M, from, to>(c, x, pitch, [](int k, int m) { return k * own + m; });
    // Four lanes that differ in bits 4 and 8 hold four neighbouring units, and the four units 8 rows below, of two
    // sequences. They exchange values until each has four neighbouring units of one sequence.
    const bool lower = device::lane() & 8, right = device::lane() & 4;
    const int unit = 16 * own * device::warp() + 8 * lower + device::lane() / 16 * 4;
    const int column = 2 * (device::lane() % 4) + right;
    RNNKERN_UNROLL
    for (int m = 0; m < own; ++m) {
      float keep[2], take[2];
      RNNKERN_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float low = c[0][m][i], high = c[0][m][i + 2];
        keep[i] = lower ? high : low;
        take[i] = device::shuffle_xor(lower ? low : high, 8);
      }
      float word[4];
      RNNKERN_UNROLL
      for (int pair = 0; pair < 2; ++pair) {  // of lanes with bit 8 clear, and set
        const float left = (pair == 1) == lower ? keep[0] : take[0], beside = (pair == 1) == lower ? keep[1] : take[1];
        const float mine = right ? beside : left, other = device::shuffle_xor(right ? left : beside, 4);
        word[2 * pair] = right ? other : mine;
        word[2 * pair + 1] = right ? mine : other;
      }
      if (column < n) send(unit + 16 * m, column, word);
    }
  }
};

// ---- exact float32: fused multiply-adds, 4 sequences, two at a time: loading the weights takes as long as multiplying

// Eight lanes share a unit and split its columns; two of them end with all gates of one sequence.
template <class Cell, int D>
struct ClusterFmaForward : ClusterShape<Cell, float, D> {
  using Shape = ClusterShape<Cell, float, D>;
  using Shape::units, Shape::gates;
  static constexpr int threads = 8 * units, columns = 4, values = 1;
  static constexpr int pitch = D, x_size = columns * pitch;
  using Weights = FmaWeights<gates, D / 32, threads>;
  static constexpr int64_t shared_size = Weights::shared_size, sums_size = 0;

  Weights weights;
  float sums[gates];

  RNNKERN_DEVICE void use(char*) {}
  RNNKERN_DEVICE static int unit(int) { return device::thread() / 8; }
  RNNKERN_DEVICE static int column(int) { return (device::thread() & 2) + device::thread() / 4 % 2; }
  RNNKERN_DEVICE static bool idle(int, int) { return false; }
  RNNKERN_DEVICE static bool writes() { return device::thread() % 2 == 0; }
  static constexpr int members = 8;
  RNNKERN_DEVICE static int member() { return device::lane() / 8 * 2 + device::lane() % 2; }
  RNNKERN_DEVICE static int smem_offset(int column, int unit) { return column * pitch + unit; }

  RNNKERN_DEVICE static device::Word16 gather(float h) {
    uint32_t word[4];
    RNNKERN_UNROLL
    for (int k = 0; k < 4; ++k) {
      const float from = device::shuffle(h, device::lane() % 8 + 8 * k);
      std::memcpy(word + k, &from, 4);
    }
    return {word[0], word[1], word[2], word[3]};
  }

  RNNKERN_DEVICE void load(const float* R, int hidden, int rank, char* memory) {
    const int part = device::thread() % 8;
    weights.load(memory, [&](int gate, int j, int i) {
      return weight(R, hidden, gate, rank * units + unit(0), 32 * j + 4 * part + i, gates);
    });
  }

  template <int first, int last>
  RNNKERN_DEVICE void multiply(const float* x, int n) {
    const float* mine = x + 4 * (device::thread() % 8);
    RNNKERN_ROLLED
    for (int two = 0; two < n; two += 2) {
      float acc[last - first][2] = {};
      weights.template multiply<0, D / 32, first, last>(
          acc, [&](int j, int c) { return reinterpret_cast<const Float4*>(mine + (two + c) * pitch + 32 * j); });
      RNNKERN_UNROLL
      for (int g = first; g < last; ++g) {
        float* sum = acc[g - first];
        halve<2>(sum, 4);
        sum[0] += device::shuffle_xor(sum[0], 2);
        sum[0] += device::shuffle_xor(sum[0], 1);
        sums[g] = (device::thread() & 2) == two ? sum[0] : sums[g];
      }
    }
  }

  template <int first, int last>
  RNNKERN_DEVICE void result(int, float (&r)[gates]) const {
    RNNKERN_UNROLL
    for (int g = first; g < last; ++g) r[g] = sums[g];
  }
};

// A thread has four units; `parts` lanes split the block's rows of R.
template <class Cell, int D>
struct ClusterFmaBackward : ClusterShape<Cell, float, D> {
  using Shape = ClusterShape<Cell, float, D>;
  using Shape::units, Shape::gates;
  static constexpr int threads = 8 * units, columns = 4, parts = 4 * threads / D;
  static constexpr int pitch = gates * units, x_size = columns * pitch, chunk = 4 * parts;
  using Weights = FmaWeights<4, pitch / chunk, threads>;
  static constexpr int64_t shared_size = Weights::shared_size;
  static_assert(parts == 2 || parts == 4);

  Weights weights;

  RNNKERN_DEVICE static int smem_offset(int column, int gate, int unit) { return column * pitch + gate * units + unit; }

  RNNKERN_DEVICE void load(const float* R, int hidden, int rank, char* memory) {
    const int part = device::thread() % parts, column = device::thread() / parts * 4;
    weights.load(memory, [&](int m, int j, int i) {
      const int row = chunk * j + 4 * part + i;
      return weight(R, hidden, row / units, rank * units + row % units, column + m, gates);
    });
  }

  template <int first, int last, class Send>
  RNNKERN_DEVICE void multiply(const float* x, int n, Send send) const {
    static_assert(first * units % chunk == 0 && last * units % chunk == 0, "whole chunks");
    const int part = device::thread() % parts;
    RNNKERN_ROLLED
    for (int two = 0; two < n; two += 2) {
      float acc[4][2] = {}, word[8];
      weights.template multiply<first * units / chunk, last * units / chunk, 0, 4>(acc, [&](int j, int c) {
        return reinterpret_cast<const Float4*>(x + (two + c) * pitch + chunk * j + 4 * part);
      });
      RNNKERN_UNROLL
      for (int i = 0; i < 8; ++i) word[i] = acc[i % 4][i / 4];
      halve<8>(word, 1);
      if constexpr (parts == 4) {
        RNNKERN_UNROLL
        for (int i = 0; i < 4; ++i) word[i] += device::shuffle_xor(word[i], 2);
      }
      const int column = two + part % 2;
      const float four[4] = {word[0], word[1], word[2], word[3]};
      if (part < 2 && column < n) send(device::thread() / parts * 4, column, four);
    }
  }
};

// ---- the tiles of a kernel

template <class Cell, class M, int D>
struct ClusterTiles {
  using Forward = ClusterMmaForward<Cell, M, D>;
  using Backward = ClusterMmaBackward<Cell, M, D>;
};

template <class Cell, int D>
struct ClusterTiles<Cell, float, D> {
  using Forward = ClusterFmaForward<Cell, D>;
  using Backward = ClusterFmaBackward<Cell, D>;
};

}  // namespace rnnkern
