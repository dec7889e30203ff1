// How a block that processes all steps of one sample divides the work: P units, `parts` neighbouring threads per unit,
// each with a part of the unit's row of every product. Weights are kept as W, float or a 16-bit type; everything else
// is float.
#pragma once

#include <type_traits>

#include "relevancy/cells.h"
#include "relevancy/cuda/stepwise_attention_block.cuh"

namespace rnnkern::relevancy {

constexpr int per_sequence_threads = stepwise_attention_threads;

// Constants that convert 16-bit weights to float. They are read from shared memory in every step: with compile-time
// constants the compiler would convert all weights in registers once, before the loop, into twice as many registers.
struct alignas(8) UnpackConstants {
  uint32_t shift, mask;
};

// 16 bytes of a row of weights: `count` columns.
template <class W>
struct alignas(16) Fragment16B {
  static constexpr int count = 16 / sizeof(W);
  static constexpr bool is_bfloat16 = std::is_same_v<W, device::bfloat16>;
  static constexpr UnpackConstants widening{16, is_bfloat16 ? 0xffff0000 : 0xffffffff};
  uint32_t words[4];

  // The weight of the i-th column.
  RNNKERN_DEVICE float at(int i, UnpackConstants how) const {
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
  // The fragment with f(i) in each column.
  template <class F>
  RNNKERN_DEVICE static Fragment16B of(F f) {
    W values[count];
    RNNKERN_UNROLL
    for (int i = 0; i < count; ++i) values[i] = device::narrow<W>(f(i));
    Fragment16B made;
    std::memcpy(made.words, values, 16);
    return made;
  }
};

template <int P, class W>
struct Tile {
  static constexpr int parts = per_sequence_threads / P,
                       pieces = P / parts / Fragment16B<W>::count;  // of columns, per part

  RNNKERN_DEVICE static int unit() { return device::thread() / parts; }
  RNNKERN_DEVICE static int part() { return device::thread() % parts; }
  // The first column of a piece. Pieces of neighbouring parts are adjacent.
  RNNKERN_DEVICE static int column(int piece) { return (piece * parts + part()) * Fragment16B<W>::count; }

  // The sum over the parts of a unit, in all of them.
  RNNKERN_DEVICE static float total(float sum) { return device::group_sum<parts>(sum); }
};

// Adds the product of 16 bytes of weights with a vector in shared memory.
template <class W>
RNNKERN_DEVICE void add(float& sum, const Fragment16B<W>& w, UnpackConstants how, const float* vector) {
  RNNKERN_UNROLL
  for (int i = 0; i < Fragment16B<W>::count; i += 4) {
    const Four x = *reinterpret_cast<const Four*>(vector + i);
    sum += w.at(i, how) * x.x;
    sum += w.at(i + 1, how) * x.y;
    sum += w.at(i + 2, how) * x.z;
    sum += w.at(i + 3, how) * x.w;
  }
}

// A thread's piece of the rows of a weight (n, n), or of its columns if `transposed`; zero outside.
template <int P, class W>
RNNKERN_DEVICE Fragment16B<W> piece_of(const float* weight, int64_t n, bool transposed, int piece) {
  const int64_t row_step = transposed ? 1 : n, column_step = transposed ? n : 1;
  const int unit = Tile<P, W>::unit(), first = Tile<P, W>::column(piece);
  return Fragment16B<W>::of([&](int i) {
    const int column = first + i;
    return unit < n && column < n ? weight[unit * row_step + column * column_step] : 0.0f;
  });
}

// The first pieces of a thread's part of a weight: `in_registers` of them in registers, then `in_shared` in shared
// memory, where a thread only reads what it wrote itself.
template <class W, int in_registers, int in_shared>
struct Weight {
  Fragment16B<W> own[in_registers > 0 ? in_registers : 1];
  Fragment16B<W>* shared_layout;

  // Loads the pieces from piece(k).
  template <class F>
  RNNKERN_DEVICE void load(F piece, Fragment16B<W>* shared) {
    shared_layout = shared + device::thread();
    RNNKERN_UNROLL
    for (int k = 0; k < in_registers; ++k) own[k] = piece(k);
    RNNKERN_ROLLED
    for (int k = 0; k < in_shared; ++k) shared_layout[k * per_sequence_threads] = piece(in_registers + k);
  }
};

// How many pieces of each weight are in registers and in shared memory, for V's gates and W_a, and for U_a. The
// remaining pieces of V and W_a are streamed from the L2 cache in every step.
struct WeightPlacement {
  int in_registers, in_shared, keys_in_registers, keys_in_shared;
};

// As many registers as the compiler takes without spilling, on all three architectures. A piece of all threads is 4 KB.
// In float, a weight of one gate has 4 pieces for 64 units and 16 for 128; V and W_a then take 128 of a thread's 255
// registers. An LSTM of 128 units in float has 96 pieces, 384 KB, as have the three weights of one gate and 256 units
// in 16 bits:
//                       registers   shared memory of 227 KB                           streamed
// LSTM       forward    45          46, 184 KB; the rest is for about 40 events       5, 20 KB a step
//            backward   35          51, 204 KB; 11 KB are for sums and the step       10, 40 KB
// one gate   forward    40          44, 176 KB; the rest is for 23 events             12, 48 KB
//            backward   32          52, 208 KB; 11 KB are for sums and the step       12, 48 KB
// In 16 bits an LSTM of 128 units has 48 pieces, none of them streamed.
template <int gates, int P, class W>
constexpr WeightPlacement forward_placement =
    sizeof(W) == 2 ? (gates > 1 ? WeightPlacement{6, 2, 0, 8} : WeightPlacement{16, 10, 8, 24})
    : P == 64      ? WeightPlacement{4, 0, 4, 0}
                   : (gates > 1 ? WeightPlacement{9, 6, 0, 16} : WeightPlacement{16, 0, 8, 8});
template <int gates, int P, class W>
constexpr WeightPlacement backward_placement =
    sizeof(W) == 2        ? (gates > 1 ? WeightPlacement{6, 2, 0, 8} : WeightPlacement{16, 10, 0, 32})
    : gates > 1 && P > 64 ? WeightPlacement{7, 7, 0, 16}
                          : WeightPlacement{P * P / 1024, 0, 0, P * P / 1024};

// V's gates and W_a, which are multiplied together, and U_a.
template <class Cell, int P, class W, WeightPlacement placement>
struct Weights {
  using T = Tile<P, W>;
  using Matrix = Weight<W, placement.in_registers, placement.in_shared>;
  using Keys = Weight<W, placement.keys_in_registers, placement.keys_in_shared>;
  static constexpr int matrices = Cell::gates + 1, first_streamed = placement.in_registers + placement.in_shared;
  static_assert(first_streamed <= T::pieces && placement.keys_in_registers + placement.keys_in_shared == T::pieces);
  static_assert(placement.keys_in_shared % 4 == 0);
  // Whether weights are packed by PackKernel: for streaming, and to convert to 16 bits, which takes registers.
  static constexpr bool packs = first_streamed < T::pieces || sizeof(W) == 2;
  static constexpr int packed = packs ? (matrices + 1) * T::pieces : 0;  // pieces of all threads

  struct SharedLayout {
    Fragment16B<W>* kept;
    UnpackConstants* widening;

    static RNNKERN_HOST_DEVICE SharedLayout carve(device::SharedArena& arena) {
      SharedLayout shared_layout;
      shared_layout.kept = arena.alloc<Fragment16B<W>>((matrices * placement.in_shared + placement.keys_in_shared) *
                                                       per_sequence_threads);
      shared_layout.widening = arena.alloc<UnpackConstants>(sizeof(W) == 2);
      return shared_layout;
    }
  };

  Matrix of_state[matrices];
  Keys U_a;
  const Fragment16B<W>* all;
  const UnpackConstants* widening;

  // A barrier must follow before the first product.
  template <class Problem>
  RNNKERN_DEVICE void load(const Problem& p, int64_t n, bool transposed, SharedLayout shared_layout) {
    all = reinterpret_cast<const Fragment16B<W>*>(p.packed) + device::thread();
    const auto of_matrix = [&](int g) {
      return [&, g](int k) {
        if constexpr (packs) {
          return all[(g * T::pieces + k) * per_sequence_threads];
        } else {
          return piece_of<P, W>(g < Cell::gates ? p.V + g * n * n : g < matrices ? p.W_a : p.U_a, n, transposed, k);
        }
      };
    };
    RNNKERN_UNROLL
    for (int g = 0; g < matrices; ++g) {
      of_state[g].load(of_matrix(g), shared_layout.kept + g * placement.in_shared * per_sequence_threads);
    }
    U_a.load(of_matrix(matrices), shared_layout.kept + matrices * placement.in_shared * per_sequence_threads);
    widening = shared_layout.widening;
    if (sizeof(W) == 2 && device::thread() == 0) *shared_layout.widening = Fragment16B<W>::widening;
  }

  // This thread's part of the products of all matrices with their vectors (P,) in shared memory, `stride` apart. Of the
  // pieces that are not in registers, only one per matrix is loaded at a time; more would spill.
  RNNKERN_DEVICE void multiply(float (&sums)[matrices], const float* vectors, int stride) const {
    const UnpackConstants how = read_widening();
    RNNKERN_UNROLL
    for (int g = 0; g < matrices; ++g) {
      sums[g] = 0;
      RNNKERN_UNROLL
      for (int k = 0; k < placement.in_registers; ++k)
        add(sums[g], of_state[g].own[k], how, vectors + g * stride + T::column(k));
    }
    const auto add_all = [&](const Fragment16B<W>* from, int step, int column) {
      Fragment16B<W> w[matrices];
      RNNKERN_UNROLL
      for (int g = 0; g < matrices; ++g) w[g] = from[g * step * per_sequence_threads];
      RNNKERN_UNROLL
      for (int g = 0; g < matrices; ++g) add(sums[g], w[g], how, vectors + g * stride + column);
    };
    RNNKERN_ROLLED
    for (int k = 0; k < placement.in_shared; ++k) {
      add_all(of_state[0].shared_layout + k * per_sequence_threads, placement.in_shared,
              T::column(placement.in_registers + k));
    }
    RNNKERN_ROLLED
    for (int k = first_streamed; k < T::pieces; ++k) add_all(all + k * per_sequence_threads, T::pieces, T::column(k));
  }

  // The product of U_a with a vector (P,) in shared memory.
  RNNKERN_DEVICE float key(const float* vector) const {
    const UnpackConstants how = read_widening();
    float sum = 0;
    RNNKERN_UNROLL
    for (int k = 0; k < placement.keys_in_registers; ++k) add(sum, U_a.own[k], how, vector + T::column(k));
    RNNKERN_ROLLED
    for (int first = 0; first < placement.keys_in_shared; first += 4) {
      RNNKERN_UNROLL
      for (int k = first; k < first + 4; ++k) {
        add(sum, U_a.shared_layout[k * per_sequence_threads], how, vector + T::column(placement.keys_in_registers + k));
      }
    }
    return T::total(sum);
  }

 private:
  RNNKERN_DEVICE UnpackConstants read_widening() const { return sizeof(W) == 2 ? *widening : UnpackConstants{}; }
};

// Packs all pieces of V's gates, W_a and U_a, one piece per block.
template <int P, class W>
struct PackKernel {
  using Problem = Pack;
  static constexpr char header[] = "relevancy/cuda/per_sequence_tile.cuh";
  static constexpr int threads = per_sequence_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int g = device::block() / Tile<P, W>::pieces, piece = device::block() % Tile<P, W>::pieces;
    const float* const weight = g < p.gates ? p.V + g * p.n * p.n : g == p.gates ? p.W_a : p.U_a;
    reinterpret_cast<Fragment16B<W>*>(p.to)[device::block() * threads + device::thread()] =
        piece_of<P, W>(weight, p.n, p.transposed, piece);
  }
};

}  // namespace rnnkern::relevancy
