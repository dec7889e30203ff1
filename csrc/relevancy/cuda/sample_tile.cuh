// What a block that keeps one sample for all steps shares out: P units, `parts` neighbouring threads to each, and of
// every product a part of its row to each of these. Weights lie there as W has them, float or 16 bits; all else is
// float.
#pragma once

#include <type_traits>

#include "relevancy/cells.h"
#include "relevancy/cuda/attend_block.cuh"

namespace rnnkern::relevancy {

constexpr int sample_threads = attend_threads;

// How 16 bits become float. It lies in shared memory and is read at every step: by constants the compiler would widen
// what registers hold once, ahead of the steps, into twice as many registers.
struct alignas(8) Widening {
  uint32_t shift, mask;
};

// 16 bytes of a row of weights: so many columns.
template <class W>
struct alignas(16) Piece {
  static constexpr int count = 16 / sizeof(W);
  static constexpr bool is_bfloat16 = std::is_same_v<W, device::bfloat16>;
  static constexpr Widening widening{16, is_bfloat16 ? 0xffff0000 : 0xffffffff};
  uint32_t words[4];

  // The weight of the i-th column.
  RNNKERN_DEVICE float at(int i, Widening how) const {
    if constexpr (std::is_same_v<W, device::float16>) {
      return device::widen(W{uint16_t((words[i / 2] & how.mask) >> 16 * (i % 2))});
    } else {
      float x;
      const uint32_t word = words[i * sizeof(W) / 4];
      const uint32_t bits = !is_bfloat16 ? word : i % 2 ? word & how.mask : word << how.shift;
      std::memcpy(&x, &bits, 4);
      return x;
    }
  }
  // f(i) of each column.
  template <class F>
  RNNKERN_DEVICE static Piece of(F f) {
    W values[count];
    RNNKERN_UNROLL
    for (int i = 0; i < count; ++i) values[i] = device::narrow<W>(f(i));
    Piece made;
    std::memcpy(made.words, values, 16);
    return made;
  }
};

struct alignas(16) Quad {
  float x, y, z, w;
};

template <int P, class W>
struct Tile {
  static constexpr int parts = sample_threads / P, pieces = P / parts / Piece<W>::count;  // of columns, per part

  RNNKERN_DEVICE static int unit() { return device::thread() / parts; }
  RNNKERN_DEVICE static int part() { return device::thread() % parts; }
  // The first column of a piece: those of neighbouring parts lie side by side.
  RNNKERN_DEVICE static int column(int piece) { return (piece * parts + part()) * Piece<W>::count; }

  // Over the parts of a unit; all of them have it.
  RNNKERN_DEVICE static float total(float sum) {
    RNNKERN_UNROLL
    for (int mask = parts / 2; mask > 0; mask /= 2) sum += device::shuffle_xor(sum, mask);
    return sum;
  }
};

// Adds a part of a product with a vector in shared memory, on 16 bytes of the weights.
template <class W>
RNNKERN_DEVICE void add(float& sum, const Piece<W>& w, Widening how, const float* vector) {
  RNNKERN_UNROLL
  for (int i = 0; i < Piece<W>::count; i += 4) {
    const Quad x = *reinterpret_cast<const Quad*>(vector + i);
    sum += w.at(i, how) * x.x;
    sum += w.at(i + 1, how) * x.y;
    sum += w.at(i + 2, how) * x.z;
    sum += w.at(i + 3, how) * x.w;
  }
}

// A thread's piece of the rows or, transposed, columns of a weight (n, n), zero where there is none.
template <int P, class W>
RNNKERN_DEVICE Piece<W> piece_of(const float* weight, int64_t n, bool transposed, int piece) {
  const int64_t row_step = transposed ? 1 : n, column_step = transposed ? n : 1;
  const int unit = Tile<P, W>::unit(), first = Tile<P, W>::column(piece);
  return Piece<W>::of([&](int i) {
    const int column = first + i;
    return unit < n && column < n ? weight[unit * row_step + column * column_step] : 0.0f;
  });
}

// The first of a thread's pieces of a weight: so many in registers, then so many in shared memory, where it reads what
// it wrote itself.
template <class W, int held, int kept>
struct Weight {
  Piece<W> own[held > 0 ? held : 1];
  Piece<W>* room;

  // piece(k) is one of them.
  template <class F>
  RNNKERN_DEVICE void load(F piece, Piece<W>* shared) {
    room = shared + device::thread();
    RNNKERN_UNROLL
    for (int k = 0; k < held; ++k) own[k] = piece(k);
    RNNKERN_ROLLED
    for (int k = 0; k < kept; ++k) room[k * sample_threads] = piece(held + k);
  }
};

// How many pieces of each weight lie in registers and in shared memory: of V's gates and of W_a, and of U_a. What is
// left of V and W_a is streamed out of the L2 cache at every step.
struct Spread {
  int held, kept, held_keys, kept_keys;
};

// What the compiler takes without spilling, for all three architectures. A piece of all threads is 4 KB. In float,
// weights of one gate have 4 pieces each for 64 units, and 16 for 128: V and W_a then take 128 of a thread's 255
// registers. An LSTM of 128 units has 96 pieces, 384 KB, and so have in 16 bits the three weights of one gate and 256
// units:
//                       registers   shared memory of 227 KB                           streamed
// an LSTM    forward    45          46, 184 KB; the rest is for about 40 members      5, 20 KB a step
//            backward   35          51, 204 KB; 11 KB are for sums and the step       10, 40 KB
// one gate   forward    40          44, 176 KB; the rest is for 23 members            12, 48 KB
//            backward   32          52, 208 KB; 11 KB are for sums and the step       12, 48 KB
// In 16 bits an LSTM of 128 units has 48 pieces, none of them streamed.
template <int gates, int P, class W>
constexpr Spread forward_spread = sizeof(W) == 2 ? (gates > 1 ? Spread{6, 2, 0, 8} : Spread{16, 10, 8, 24})
                                  : P == 64      ? Spread{4, 0, 4, 0}
                                                 : (gates > 1 ? Spread{9, 6, 0, 16} : Spread{16, 0, 8, 8});
template <int gates, int P, class W>
constexpr Spread backward_spread = sizeof(W) == 2        ? (gates > 1 ? Spread{6, 2, 0, 8} : Spread{16, 10, 0, 32})
                                   : gates > 1 && P > 64 ? Spread{7, 7, 0, 16}
                                                         : Spread{P * P / 1024, 0, 0, P * P / 1024};

// V's gates and W_a, the matrices that are multiplied together, and U_a.
template <class Cell, int P, class W, Spread spread>
struct Weights {
  using T = Tile<P, W>;
  using Matrix = Weight<W, spread.held, spread.kept>;
  using Keys = Weight<W, spread.held_keys, spread.kept_keys>;
  static constexpr int matrices = Cell::gates + 1, first_streamed = spread.held + spread.kept;
  static_assert(first_streamed <= T::pieces && spread.held_keys + spread.kept_keys == T::pieces);
  static_assert(spread.kept_keys % 4 == 0);
  // Whether they come as PackKernel leaves them: to stream them, and narrow, which takes registers of its own.
  static constexpr bool packs = first_streamed < T::pieces || sizeof(W) == 2;
  static constexpr int packed = packs ? (matrices + 1) * T::pieces : 0;  // pieces of all threads

  struct Room {
    Piece<W>* kept;
    Widening* widening;

    static RNNKERN_HOST_DEVICE Room carve(device::Carver& carver) {
      Room room;
      room.kept = carver.take<Piece<W>>((matrices * spread.kept + spread.kept_keys) * sample_threads);
      room.widening = carver.take<Widening>(sizeof(W) == 2);
      return room;
    }
  };

  Matrix of_state[matrices];
  Keys U_a;
  const Piece<W>* all;
  const Widening* widening;

  // A barrier comes before any product.
  template <class Problem>
  RNNKERN_DEVICE void load(const Problem& p, int64_t n, bool transposed, Room room) {
    all = reinterpret_cast<const Piece<W>*>(p.packed) + device::thread();
    const auto of_matrix = [&](int g) {
      return [&, g](int k) {
        if constexpr (packs) {
          return all[(g * T::pieces + k) * sample_threads];
        } else {
          return piece_of<P, W>(g < Cell::gates ? p.V + g * n * n : g < matrices ? p.W_a : p.U_a, n, transposed, k);
        }
      };
    };
    RNNKERN_UNROLL
    for (int g = 0; g < matrices; ++g) {
      of_state[g].load(of_matrix(g), room.kept + g * spread.kept * sample_threads);
    }
    U_a.load(of_matrix(matrices), room.kept + matrices * spread.kept * sample_threads);
    widening = room.widening;
    if (sizeof(W) == 2 && device::thread() == 0) *room.widening = Piece<W>::widening;
  }

  // This thread's part of the product of every matrix with its vector of P in shared memory, `stride` after the one
  // before. Of what is not in registers one piece of each matrix is under way at once: more would spill.
  RNNKERN_DEVICE void multiply(float (&sums)[matrices], const float* vectors, int stride) const {
    const Widening how = read_widening();
    RNNKERN_UNROLL
    for (int g = 0; g < matrices; ++g) {
      sums[g] = 0;
      RNNKERN_UNROLL
      for (int k = 0; k < spread.held; ++k) add(sums[g], of_state[g].own[k], how, vectors + g * stride + T::column(k));
    }
    const auto add_all = [&](const Piece<W>* from, int step, int column) {
      Piece<W> w[matrices];
      RNNKERN_UNROLL
      for (int g = 0; g < matrices; ++g) w[g] = from[g * step * sample_threads];
      RNNKERN_UNROLL
      for (int g = 0; g < matrices; ++g) add(sums[g], w[g], how, vectors + g * stride + column);
    };
    RNNKERN_ROLLED
    for (int k = 0; k < spread.kept; ++k) {
      add_all(of_state[0].room + k * sample_threads, spread.kept, T::column(spread.held + k));
    }
    RNNKERN_ROLLED
    for (int k = first_streamed; k < T::pieces; ++k) add_all(all + k * sample_threads, T::pieces, T::column(k));
  }

  // U_a's with a vector of P in shared memory.
  RNNKERN_DEVICE float key(const float* vector) const {
    const Widening how = read_widening();
    float sum = 0;
    RNNKERN_UNROLL
    for (int k = 0; k < spread.held_keys; ++k) add(sum, U_a.own[k], how, vector + T::column(k));
    RNNKERN_ROLLED
    for (int first = 0; first < spread.kept_keys; first += 4) {
      RNNKERN_UNROLL
      for (int k = first; k < first + 4; ++k) {
        add(sum, U_a.room[k * sample_threads], how, vector + T::column(spread.held_keys + k));
      }
    }
    return T::total(sum);
  }

 private:
  RNNKERN_DEVICE Widening read_widening() const { return sizeof(W) == 2 ? *widening : Widening{}; }
};

// All pieces of V's gates, of W_a and of U_a, one of a matrix per block.
template <int P, class W>
struct PackKernel {
  using Problem = Pack;
  static constexpr char header[] = "relevancy/cuda/sample_tile.cuh";
  static constexpr int threads = sample_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int g = device::block() / Tile<P, W>::pieces, piece = device::block() % Tile<P, W>::pieces;
    const float* const weight = g < p.gates ? p.V + g * p.n * p.n : g == p.gates ? p.W_a : p.U_a;
    reinterpret_cast<Piece<W>*>(p.to)[device::block() * threads + device::thread()] =
        piece_of<P, W>(weight, p.n, p.transposed, piece);
  }
};

}  // namespace rnnkern::relevancy
