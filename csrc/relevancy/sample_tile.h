// What a block that keeps one sample for all steps shares out: P units, `parts` neighbouring threads to each, and of
// every product a part of its row to each of these. float alone.
#pragma once

#include "relevancy/attend_block.h"

namespace rnnkern::relevancy {

constexpr int sample_threads = attend_threads;

struct alignas(16) Quad {
  float x, y, z, w;
};

template <int P>
struct Tile {
  static constexpr int parts = sample_threads / P, quads = P / parts / 4;  // quads of columns per part

  RNNKERN_DEVICE static int unit() { return device::thread() / parts; }
  RNNKERN_DEVICE static int part() { return device::thread() % parts; }
  // The first column of a quad: those of neighbouring parts lie side by side.
  RNNKERN_DEVICE static int column(int quad) { return (quad * parts + part()) * 4; }

  // Over the parts of a unit; all of them have it.
  RNNKERN_DEVICE static float total(float sum) {
    RNNKERN_UNROLL
    for (int mask = parts / 2; mask > 0; mask /= 2) sum += device::shuffle_xor(sum, mask);
    return sum;
  }
};

// Adds a part of a product with a vector in shared memory, on 16 bytes.
RNNKERN_DEVICE void add(float& sum, const Quad& w, const float* vector) {
  const Quad x = *reinterpret_cast<const Quad*>(vector);
  sum += w.x * x.x;
  sum += w.y * x.y;
  sum += w.z * x.z;
  sum += w.w * x.w;
}

// A thread's quad of weight[unit * row_step + column * column_step], (n, n), zero where there is none.
template <int P>
RNNKERN_DEVICE Quad quad_of(const float* weight, int64_t n, int64_t row_step, int64_t column_step, int quad) {
  const int unit = Tile<P>::unit(), c = Tile<P>::column(quad);
  const auto at = [&](int column) {
    return unit < n && column < n ? weight[unit * row_step + column * column_step] : 0.0f;
  };
  return {at(c), at(c + 1), at(c + 2), at(c + 3)};
}

// The first of a thread's quads of a weight: so many in registers, then so many in shared memory, where it reads what
// it wrote itself.
template <int P, int held, int kept>
struct Weight {
  Quad own[held > 0 ? held : 1];
  Quad* room;

  RNNKERN_DEVICE void load(const float* weight, int64_t n, int64_t row_step, int64_t column_step, Quad* shared) {
    room = shared + device::thread();
    RNNKERN_UNROLL
    for (int k = 0; k < held; ++k) own[k] = quad_of<P>(weight, n, row_step, column_step, k);
    RNNKERN_ROLLED
    for (int k = 0; k < kept; ++k) {
      room[k * sample_threads] = quad_of<P>(weight, n, row_step, column_step, held + k);
    }
  }
};

// How many quads of each weight lie in registers and in shared memory: of V's gates and of W_a, and of U_a. What is
// left of V and W_a is streamed out of the L2 cache at every step.
struct Spread {
  int held, kept, held_keys, kept_keys;
};

// What the compiler takes without spilling, for all three architectures. A quad of all threads is 4 KB. Weights of one
// gate have 4 quads each for 64 units, and 16 for 128: V and W_a then take 128 of a thread's 255 registers. An LSTM of
// 128 units has 96 quads, 384 KB:
//           registers   shared memory of 227 KB                               streamed
// forward   45          46, 184 KB; the rest is for about 40 members          5, 20 KB a step
// backward  35          51, 204 KB; 11 KB are for sums and the step           10, 40 KB
template <int gates, int P>
constexpr Spread forward_spread = gates > 1 && P > 64 ? Spread{9, 6, 0, 16}
                                  : P > 64            ? Spread{16, 0, 8, 8}
                                                      : Spread{4, 0, 4, 0};
template <int gates, int P>
constexpr Spread backward_spread =
    gates > 1 && P > 64 ? Spread{7, 7, 0, 16} : Spread{Tile<P>::quads, 0, 0, Tile<P>::quads};

// V's gates and W_a, the matrices that are multiplied together, and U_a.
template <class Cell, int P, Spread spread>
struct Weights {
  using T = Tile<P>;
  using Matrix = Weight<P, spread.held, spread.kept>;
  using Keys = Weight<P, spread.held_keys, spread.kept_keys>;
  static constexpr int matrices = Cell::gates + 1, first_packed = spread.held + spread.kept,
                       packed = T::quads - first_packed;
  static_assert(packed >= 0 && spread.held_keys + spread.kept_keys == T::quads);

  Matrix of_state[matrices];
  Keys U_a;
  const Quad* rest;

  static RNNKERN_HOST_DEVICE Quad* carve(device::Carver& carver) {
    return carver.take<Quad>((matrices * spread.kept + spread.kept_keys) * sample_threads);
  }

  // `streamed` as PackKernel leaves it.
  RNNKERN_DEVICE void load(const float* V, const float* W_a, const float* U_a_, int64_t n, bool transposed, Quad* room,
                           const float* streamed) {
    const int64_t row_step = transposed ? 1 : n, column_step = transposed ? n : 1;
    RNNKERN_UNROLL
    for (int g = 0; g < matrices; ++g) {
      of_state[g].load(g < Cell::gates ? V + g * n * n : W_a, n, row_step, column_step,
                       room + g * spread.kept * sample_threads);
    }
    U_a.load(U_a_, n, row_step, column_step, room + matrices * spread.kept * sample_threads);
    rest = reinterpret_cast<const Quad*>(streamed) + device::thread();
  }

  // This thread's part of the product of every matrix with its vector of P in shared memory, `stride` after the one
  // before. Of what is not in registers one quad of each matrix is under way at once: more would spill.
  RNNKERN_DEVICE void multiply(float (&sums)[matrices], const float* vectors, int stride) const {
    RNNKERN_UNROLL
    for (int g = 0; g < matrices; ++g) {
      sums[g] = 0;
      RNNKERN_UNROLL
      for (int k = 0; k < spread.held; ++k) add(sums[g], of_state[g].own[k], vectors + g * stride + T::column(k));
    }
    const auto add_all = [&](const Quad* from, int step, int column) {
      Quad w[matrices];
      RNNKERN_UNROLL
      for (int g = 0; g < matrices; ++g) w[g] = from[g * step * sample_threads];
      RNNKERN_UNROLL
      for (int g = 0; g < matrices; ++g) add(sums[g], w[g], vectors + g * stride + column);
    };
    RNNKERN_ROLLED
    for (int k = 0; k < spread.kept; ++k) {
      add_all(of_state[0].room + k * sample_threads, spread.kept, T::column(spread.held + k));
    }
    RNNKERN_ROLLED
    for (int k = 0; k < packed; ++k) add_all(rest + k * sample_threads, packed, T::column(first_packed + k));
  }

  // U_a's with a vector of P in shared memory.
  RNNKERN_DEVICE float key(const float* vector) const {
    float sum = 0;
    RNNKERN_UNROLL
    for (int k = 0; k < spread.held_keys; ++k) add(sum, U_a.own[k], vector + T::column(k));
    RNNKERN_ROLLED
    for (int first = 0; first < spread.kept_keys; first += 4) {
      RNNKERN_UNROLL
      for (int k = first; k < first + 4; ++k) {
        add(sum, U_a.room[k * sample_threads], vector + T::column(spread.held_keys + k));
      }
    }
    return T::total(sum);
  }
};

// The quads of V's gates and of W_a that a kernel streams, one of a matrix per block.
template <int P>
struct PackKernel {
  struct Problem {
    int64_t n;
    bool transposed;
    const float *V, *W_a;
    int gates, first, count;  // quads of a matrix
    float* to;
  };
  static constexpr int threads = sample_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int g = device::block() / p.count, quad = p.first + device::block() % p.count;
    const float* const weight = g < p.gates ? p.V + g * p.n * p.n : p.W_a;
    const int64_t row_step = p.transposed ? 1 : p.n, column_step = p.transposed ? p.n : 1;
    reinterpret_cast<Quad*>(p.to)[device::block() * threads + device::thread()] =
        quad_of<P>(weight, p.n, row_step, column_step, quad);
  }
};

}  // namespace rnnkern::relevancy
