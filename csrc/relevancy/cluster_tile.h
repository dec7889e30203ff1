// What a cluster that keeps one sample for all steps shares out: each of its R blocks has D / R units, eight
// neighbouring threads to each, and of every product an eighth of its row to each of these. float alone; padding is
// zero.
#pragma once

#include "relevancy/attend_block.h"

namespace rnnkern::relevancy {

struct alignas(16) Four {
  float x, y, z, w;
};

template <int D, int R>
struct ClusterTile {
  static constexpr int units = D / R, parts = 8, threads = parts * units, warps = threads / device::warp_size;
  static constexpr int quads = D / parts / 4;                 // of columns, per part
  static constexpr int together = device::warp_size / parts;  // units of a warp: 16 bytes
  static_assert(together == 4 && units % together == 0 && D % (4 * parts) == 0 && R <= device::warp_size);

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

  // The block's value of each unit, which all parts of it have, to `to` (D,) of every block; all lanes of the warp.
  RNNKERN_DEVICE static void give(float value, float* to, device::Mbarrier* arrived) {
    uint32_t word[together];
    RNNKERN_UNROLL
    for (int k = 0; k < together; ++k) {
      const float of_unit = device::shuffle(value, parts * k);
      std::memcpy(word + k, &of_unit, 4);
    }
    const int other = device::lane();
    float* const place = to + device::cluster_rank() * units + unit() / together * together;
    if (other < R) {
      device::store_async(device::map(place, other), device::Word16{word[0], word[1], word[2], word[3]},
                          device::map(arrived, other));
    }
  }
};

// Rows of weights (n, n) of the block's units: so many quads of each in registers, the rest in shared memory, where a
// thread reads what it wrote itself.
template <class T, int rows, int held>
struct ClusterWeights {
  static constexpr int rest_quads = T::quads - held;

  float own[rows][held * 4];
  Four* rest;  // (rows, rest_quads, threads)

  static RNNKERN_HOST_DEVICE Four* carve(device::Carver& carver) {
    return carver.take<Four>(int64_t(rows) * rest_quads * T::threads);
  }

  // Row k of this thread's unit: at(column).
  template <class At>
  RNNKERN_DEVICE void load(int row, At at) {
    RNNKERN_UNROLL
    for (int k = 0; k < held; ++k) {
      RNNKERN_UNROLL
      for (int i = 0; i < 4; ++i) own[row][4 * k + i] = at(T::column(k) + i);
    }
    RNNKERN_ROLLED
    for (int k = held; k < T::quads; ++k) {
      const int c = T::column(k);
      rest[(row * rest_quads + k - held) * T::threads + device::thread()] = {at(c), at(c + 1), at(c + 2), at(c + 3)};
    }
  }

  // The products of rows with a vector of D in shared memory.
  RNNKERN_DEVICE void multiply(const float* vector, float (&products)[rows]) const {
    float even[rows] = {}, odd[rows] = {};  // two chains: one alone would wait for itself
    RNNKERN_UNROLL
    for (int k = 0; k < T::quads; ++k) {
      const Four x = *reinterpret_cast<const Four*>(vector + T::column(k));
      RNNKERN_UNROLL
      for (int r = 0; r < rows; ++r) {
        const Four w = k < held ? Four{own[r][4 * k], own[r][4 * k + 1], own[r][4 * k + 2], own[r][4 * k + 3]}
                                : rest[(r * rest_quads + k - held) * T::threads + device::thread()];
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

}  // namespace rnnkern::relevancy
