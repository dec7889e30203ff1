// A product of a grid kernel for the units of one member: `tiles` times as many rows of R in the forward, where a tile
// is a gate, and as many columns in the backward, which has one tile. Weights stay in registers and shared memory. The
// inner dimension is divided into slices; a slice is what one member writes in a step. Slices are divided among the
// warps, whose partial sums are added in shared memory.
//
// Every tile has
//   shared_size(slices)             bytes of weights
//   scratch                         bytes of working memory for `multiply`, a multiple of 16
//   load(memory, slices, weight)    weight(tile, unit, slice, i) is element i of the slice
//   multiply(words, tag, scratch, partials)
#pragma once

#include "recurrence/cuda/grid_mailbox.cuh"

namespace rnnkern {

// Partial sums by warp, tile, pair of columns and unit. The padding avoids bank conflicts.
template <class S>
struct GridPartials {
  struct alignas(8) Pair {
    float x[2];
  };
  static constexpr int pitch = grid_units<S> + 4;

  RNNKERN_HOST_DEVICE static constexpr int64_t size(int tiles) { return int64_t(grid_warps) * tiles * 4 * pitch * 2; }

  RNNKERN_DEVICE static void give(float* partials, int tiles, int tile, int half, float x, float y) {
    const int row = (device::warp() * tiles + tile) * 4 + device::lane() % 4;
    reinterpret_cast<Pair*>(partials)[row * pitch + 8 * half + device::lane() / 4] = {x, y};
  }

  // The sum for this thread's unit and column, added in the order of the warps.
  RNNKERN_DEVICE static float sum(const float* partials, int tiles, int tile) {
    const int unit = GridThread<S>::unit(), column = GridThread<S>::column();
    float total = 0;
    RNNKERN_UNROLL
    for (int w = 0; w < grid_warps; ++w) {
      total += partials[(((w * tiles + tile) * 4 + column / 2) * pitch + unit) * 2 + column % 2];
    }
    return total;
  }
};

// ---- 16-bit storage: tensor cores; a slice is one fragment deep

template <class S, int tiles_, int budget>
struct GridMma {
  static constexpr int tiles = tiles_, kept = budget / tiles, flight = 8;
  static constexpr int chains = mma_chains(tiles, 4);
  static constexpr int64_t scratch = 0;

  RNNKERN_HOST_DEVICE static int64_t shared_size(int slices) {
    const int most = (slices + grid_warps - 1) / grid_warps;
    return int64_t(most > kept ? most - kept : 0) * tiles * grid_threads * 16;
  }

  uint32_t a[kept][tiles][4] = {};
  device::Word16* rest;
  int count;  // number of this warp's slices

  template <class Weight>
  RNNKERN_DEVICE void load(char* memory, int slices, Weight weight) {
    rest = reinterpret_cast<device::Word16*>(memory) + device::thread();
    count = (slices - device::warp() + grid_warps - 1) / grid_warps;
    const int row = device::lane() / 4, column = 2 * (device::lane() % 4);
    RNNKERN_ROLLED
    for (int n = 0; n < count; ++n) {  // see MmaWeights::load
      const int slice = device::warp() + grid_warps * n;
      uint32_t loaded[tiles][4];
      RNNKERN_UNROLL
      for (int m = 0; m < tiles; ++m) {
        RNNKERN_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int unit = row + 8 * (i % 2), k = column + 8 * (i / 2);
          loaded[m][i] = pair(weight(m, unit, slice, k), weight(m, unit, slice, k + 1));
        }
      }
      RNNKERN_UNROLL
      for (int here = 0; here < kept; ++here) {
        RNNKERN_UNROLL
        for (int m = 0; m < tiles; ++m) {
          RNNKERN_UNROLL
          for (int i = 0; i < 4; ++i) a[here][m][i] = here == n ? loaded[m][i] : a[here][m][i];
        }
      }
      if (n >= kept) {
        RNNKERN_UNROLL
        for (int m = 0; m < tiles; ++m) {
          rest[((n - kept) * tiles + m) * grid_threads] = {loaded[m][0], loaded[m][1], loaded[m][2], loaded[m][3]};
        }
      }
    }
  }

  RNNKERN_DEVICE void multiply(const device::Word16* words, uint32_t tag, char*, float* partials) const {
    constexpr int rounds = (kept + flight - 1) / flight;  // with weights in registers
    GridReader<flight> reader(words, tag);
    float c[chains][tiles][4] = {};
    reader.request(0, count);
    RNNKERN_UNROLL
    for (int round = 0; round < rounds; ++round) {
      if (round * flight < count) multiply_round<true>(c, reader, round * flight);
    }
    RNNKERN_ROLLED
    for (int n = rounds * flight; n < count; n += flight) multiply_round<false>(c, reader, n);
    add_chains(c);
    RNNKERN_UNROLL
    for (int m = 0; m < tiles; ++m) {
      GridPartials<S>::give(partials, tiles, m, 0, c[0][m][0], c[0][m][1]);
      GridPartials<S>::give(partials, tiles, m, 1, c[0][m][2], c[0][m][3]);
    }
  }

 private:
  // Requests the words of the next round, then multiplies those of this one.
  template <bool registers>
  RNNKERN_DEVICE void multiply_round(float (&c)[chains][tiles][4], GridReader<flight>& reader, int n) const {
    uint32_t b[flight][2];
    reader.receive(n, count, b);
    reader.request(n + flight, count);
    RNNKERN_UNROLL
    for (int f = 0; f < flight; ++f) {
      if (n + f >= count) continue;  // the same for the whole warp
      RNNKERN_UNROLL
      for (int m = 0; m < tiles; ++m) {
        if (registers && n + f < kept) {
          device::mma(c[f % chains][m], a[n + f < kept ? n + f : 0][m], b[f], S());
        } else {
          mma(c[f % chains][m], rest[((n + f - kept) * tiles + m) * grid_threads], b[f], S());
        }
      }
    }
  }
};

// ---- float32: fused multiply-adds, all weights in shared memory

// A lane has `rows` rows and every `parts`-th group of four elements of its warp: all tiles of one unit or, with one
// tile, four units. A round has 64 slices, of which the operand lies in shared memory.
template <int tiles_>
struct GridFma {
  static constexpr int tiles = tiles_, rows = tiles == 1 ? 4 : tiles, parts = tiles == 1 ? 16 : 4;
  static constexpr int flight = 8, slice = grid_units<float>, round = flight * grid_warps;
  static constexpr int pitch = round * slice + 4, x_size = grid_columns * pitch;
  static constexpr int depth = grid_warps * parts * 4;  // inner elements of all warps and parts together
  static constexpr int64_t scratch = 2 * x_size * sizeof(float);

  RNNKERN_HOST_DEVICE static int chunks(int slices) { return (slices * slice + depth - 1) / depth; }
  RNNKERN_HOST_DEVICE static int64_t shared_size(int slices) {
    return int64_t(chunks(slices)) * rows * grid_threads * 16;
  }

  Float4* w;
  int slices;

  // The first element of chunk j of this lane.
  RNNKERN_DEVICE static int begin(int j) {
    return ((j * grid_warps + device::warp()) * parts + device::lane() % parts) * 4;
  }

  template <class Weight>
  RNNKERN_DEVICE void load(char* memory, int slices_, Weight weight) {
    w = reinterpret_cast<Float4*>(memory) + device::thread();
    slices = slices_;
    RNNKERN_ROLLED
    for (int j = 0; j < chunks(slices); ++j) {
      const int first = begin(j);
      RNNKERN_UNROLL
      for (int m = 0; m < rows; ++m) {
        const int tile = tiles == 1 ? 0 : m,
                  unit = device::lane() / parts * (tiles == 1 ? 4 : 1) + (tiles == 1 ? m : 0);
        Float4 four{};
        RNNKERN_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (first / slice < slices) four.x[i] = weight(tile, unit, first / slice, first % slice + i);
        }
        w[(j * rows + m) * grid_threads] = four;
      }
    }
  }

  // The scratch is double-buffered: a round writes one half while slow warps still read the other. The barrier between
  // writing and reading also ensures that the previous round has been read.
  RNNKERN_DEVICE void multiply(const device::Word16* words, uint32_t tag, char* memory, float* partials) const {
    float* x = reinterpret_cast<float*>(memory);
    const int count = (slices - device::warp() + grid_warps - 1) / grid_warps, column = device::lane() / 4;
    GridReader<flight> reader(words, tag);
    float acc[rows * grid_columns] = {};
    reader.request(0, count);
    RNNKERN_ROLLED
    for (int n = 0; n * grid_warps < slices; n += flight) {
      uint32_t cells[flight][2];
      reader.receive(n, count, cells);
      float* here = x + n / flight % 2 * x_size;
      RNNKERN_UNROLL
      for (int f = 0; f < flight; ++f) {
        float* to = here + column * pitch + (f * grid_warps + device::warp()) * slice + device::lane() % 4;
        float values[2];
        std::memcpy(values, cells[f], sizeof values);
        to[0] = values[0];
        to[4] = values[1];
      }
      device::block_barrier();
      reader.request(n + flight, count);
      const int first = n * grid_warps * slice / depth, all = chunks(slices), end = first + round * slice / depth;
      RNNKERN_ROLLED
      for (int j = first; j < end && j < all; ++j) {
        const float* at = here + begin(j - first);
        Float4 four[grid_columns];
        RNNKERN_UNROLL
        for (int c = 0; c < grid_columns; ++c) four[c] = *reinterpret_cast<const Float4*>(at + c * pitch);
        RNNKERN_UNROLL
        for (int m = 0; m < rows; ++m) {
          const Float4 own = w[(j * rows + m) * grid_threads];
          RNNKERN_UNROLL
          for (int c = 0; c < grid_columns; ++c) {
            RNNKERN_UNROLL
            for (int i = 0; i < 4; ++i) acc[m * grid_columns + c] += own.x[i] * four[c].x[i];
          }
        }
      }
    }
    // Lane 4 u + p ends with columns 2 p and 2 p + 1 of unit u.
    if constexpr (tiles == 1) {
      halve<32>(acc, 8);
      halve<16>(acc, 4);
      halve<8>(acc, 2);
      halve<4>(acc, 1);
      GridPartials<float>::give(partials, 1, 0, 0, acc[0], acc[1]);
    } else {
      RNNKERN_UNROLL
      for (int m = 0; m < tiles; ++m) {
        halve<8>(acc + m * grid_columns, 2);
        halve<4>(acc + m * grid_columns, 1);
        GridPartials<float>::give(partials, tiles, m, 0, acc[m * grid_columns], acc[m * grid_columns + 1]);
      }
    }
  }
};

// Number of 16-byte fragments that a thread keeps in registers, for all products of a kernel together.
constexpr int grid_kept = 24;

template <class S, int tiles, int budget>
struct GridTiles {
  using type = GridMma<S, tiles, budget>;
};
template <int tiles, int budget>
struct GridTiles<float, tiles, budget> {
  using type = GridFma<tiles>;
};
template <class S, int tiles, int budget = grid_kept>
using GridTile = typename GridTiles<S, tiles, budget>::type;

}  // namespace rnnkern
