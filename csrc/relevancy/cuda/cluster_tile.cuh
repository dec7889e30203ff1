// How a cluster that processes all steps of one sample divides the work. Each of its R blocks has D / R units, with
// eight neighbouring threads per unit. In the forward these share the unit's row of a product; in the backward a thread
// has some columns of the rows of all units. Only float; padding is zero.
#pragma once

#include "relevancy/cells.h"
#include "relevancy/cuda/stepwise_attention_block.cuh"

namespace rnnkern::relevancy {

template <int D, int R>
struct ClusterTile {
  static constexpr int units = D / R, parts = 8, threads = parts * units, warps = threads / device::warp_size;
  static constexpr int quads = D / parts / 4;                 // groups of four columns, per part
  static constexpr int together = device::warp_size / parts;  // units of a warp: 16 bytes
  static constexpr int columns = D / threads;                 // per thread
  static_assert(together == 4 && together % columns == 0 && units % together == 0 && D % (4 * parts) == 0 &&
                R <= device::warp_size);

  RNNKERN_DEVICE static int unit() { return device::thread() / parts; }
  RNNKERN_DEVICE static int part() { return device::thread() % parts; }
  // The first column of a quad. Quads of neighbouring parts are adjacent.
  RNNKERN_DEVICE static int column(int quad) { return (quad * parts + part()) * 4; }

  // The sum over the parts of a unit, in all of them.
  RNNKERN_DEVICE static float total(float sum) { return device::group_sum<parts>(sum); }

  // Waits until all data of this step has arrived.
  RNNKERN_DEVICE static void receive(device::Mbarrier* arrived, int64_t step, int bytes) {
    device::wait(arrived, int(step % 2));
    if (device::thread() == 0) device::expect(arrived, bytes);
  }

  // Sends part(k), which every lane of a warp has, for k below `count`, an even number, to row `rank` of `to` (R,
  // count) in every block. Each warp sends pairs.
  template <class Part>
  RNNKERN_DEVICE static void give_pairs(int count, float* to, device::Mbarrier* arrived, Part part) {
    for (int k = 2 * device::warp(); k < count; k += 2 * warps) {
      const float pair[2] = {part(k), part(k + 1)};
      device::Word8 word;
      std::memcpy(&word, pair, sizeof word);
      float* const target = to + device::cluster_rank() * count + k;
      const int other = device::lane();
      if (other < R) device::store_async(device::map(target, other), word, device::map(arrived, other));
    }
  }

  // The sum over the R rows of `from` for this thread's unit, in all parts of the unit.
  RNNKERN_DEVICE static float sum(const float* from, int pitch) {
    float sum = 0;
    RNNKERN_UNROLL
    for (int r = 0; r < R / parts; ++r) sum += from[(r * parts + part()) * pitch + unit()];
    return total(sum);
  }

  // Sends the block's value of each unit, which all its parts have, to `to` (D,) in every block. For whole warps.
  RNNKERN_DEVICE static void give(float value, float* to, device::Mbarrier* arrived) {
    uint32_t word[together];
    RNNKERN_UNROLL
    for (int k = 0; k < together; ++k) {
      const float of_unit = device::shuffle(value, parts * k);
      std::memcpy(word + k, &of_unit, 4);
    }
    const int other = device::lane();
    float* const target = to + device::cluster_rank() * units + unit() / together * together;
    if (other < R) {
      device::store_async(device::map(target, other), device::Word16{word[0], word[1], word[2], word[3]},
                          device::map(arrived, other));
    }
  }
};

// Forward: the rows of `rows` weights (n, n) for the block's units. The first `held` quads of each row are in
// registers, the others in shared memory, where a thread only reads what it wrote itself.
template <class T, int rows, int held>
struct ClusterWeights {
  static constexpr int rest_quads = T::quads - held;

  Four own[rows][held];
  Four* rest;  // (rows, rest_quads, threads)

  static RNNKERN_HOST_DEVICE Four* carve(device::SharedArena& arena) {
    return arena.alloc<Four>(int64_t(rows) * rest_quads * T::threads);
  }

  // Loads row k of this thread's unit from at(column).
  template <class At>
  RNNKERN_DEVICE void load(int row, At at) {
    const auto quad_of = [&](int c) { return Four{at(c), at(c + 1), at(c + 2), at(c + 3)}; };
    RNNKERN_UNROLL
    for (int k = 0; k < held; ++k) own[row][k] = quad_of(T::column(k));
    RNNKERN_ROLLED
    for (int k = held; k < T::quads; ++k)
      rest[(row * rest_quads + k - held) * T::threads + device::thread()] = quad_of(T::column(k));
  }

  // The products of the rows with a vector (D,) in shared memory.
  RNNKERN_DEVICE void multiply(const float* vector, float (&products)[rows]) const {
    float even[rows] = {}, odd[rows] = {};  // two independent chains, to hide latency
    RNNKERN_UNROLL
    for (int k = 0; k < T::quads; ++k) {
      const Four x = *reinterpret_cast<const Four*>(vector + T::column(k));
      RNNKERN_UNROLL
      for (int r = 0; r < rows; ++r) {
        const Four w = k < held ? own[r][k] : rest[(r * rest_quads + k - held) * T::threads + device::thread()];
        even[r] += w.x * x.x;
        odd[r] += w.y * x.y;
        even[r] += w.z * x.z;
        odd[r] += w.w * x.w;
      }
    }
    RNNKERN_UNROLL
    for (int r = 0; r < rows; ++r) products[r] = T::total(even[r] + odd[r]);
  }
};

// Backward: the block's rows of `weights` weights, stacked. Of each column of a thread, the first `held` quads of rows
// are in registers, the others in shared memory, where a thread only reads what it wrote itself.
template <class T, int weights, int held>
struct ClusterRows {
  static constexpr int of_weight = T::units / 4, quads = weights * of_weight, rest_quads = quads - held;
  static_assert(rest_quads >= 0);

  Four own[T::columns][held > 0 ? held : 1];
  Four* rest;  // (columns, rest_quads, threads)

  static RNNKERN_HOST_DEVICE Four* carve(device::SharedArena& arena) {
    return arena.alloc<Four>(int64_t(T::columns) * rest_quads * T::threads);
  }

  RNNKERN_DEVICE Four* kept(int column, int quad) const {
    return rest + (column * rest_quads + quad - held) * T::threads + device::thread();
  }

  // Loads the weights from at(weight, row, column).
  template <class At>
  RNNKERN_DEVICE void load(At at) {
    const auto quad_of = [&](int column, int quad) {
      const int weight = quad / of_weight, row = device::cluster_rank() * T::units + quad % of_weight * 4;
      const int c = device::thread() * T::columns + column;
      return Four{at(weight, row, c), at(weight, row + 1, c), at(weight, row + 2, c), at(weight, row + 3, c)};
    };
    RNNKERN_UNROLL
    for (int c = 0; c < T::columns; ++c) {
      RNNKERN_UNROLL
      for (int k = 0; k < held; ++k) own[c][k] = quad_of(c, k);
      RNNKERN_ROLLED
      for (int k = held; k < quads; ++k) *kept(c, k) = quad_of(c, k);
    }
  }

  // Multiplies the transposed rows by the vectors (weights, units) in shared memory, and sends to each block the result
  // for its units, as row `rank` of `to` (R, pitch).
  RNNKERN_DEVICE void send(const float* vectors, float* to, int pitch, device::Mbarrier* arrived) const {
    constexpr int columns = T::columns, together = 4 / columns;  // lanes per 16 bytes
    float even[columns] = {}, odd[columns] = {};                 // two independent chains, to hide latency
    RNNKERN_UNROLL
    for (int k = 0; k < quads; ++k) {
      const Four x = *reinterpret_cast<const Four*>(vectors + 4 * k);
      RNNKERN_UNROLL
      for (int c = 0; c < columns; ++c) {
        const Four w = k < held ? own[c][k] : *kept(c, k);
        even[c] += w.x * x.x;
        odd[c] += w.y * x.y;
        even[c] += w.z * x.z;
        odd[c] += w.w * x.w;
      }
    }
    const int lane = device::lane(), column = device::thread() * columns, block = column / T::units;
    uint32_t word[4];
    RNNKERN_UNROLL
    for (int k = 0; k < 4; ++k) {
      const float x = device::shuffle(even[k % columns] + odd[k % columns], lane / together * together + k / columns);
      std::memcpy(word + k, &x, 4);
    }
    if (lane % together > 0) return;
    float* const target = to + device::cluster_rank() * pitch + column % T::units;
    device::store_async(device::map(target, block), device::Word16{word[0], word[1], word[2], word[3]},
                        device::map(arrived, block));
  }
};

}  // namespace rnnkern::relevancy
