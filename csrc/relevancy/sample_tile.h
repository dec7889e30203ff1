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

// A thread's part of a weight (P, P): so many of its quads in registers, the rest in shared memory, where it reads what
// it wrote itself.
template <int P, int held>
struct Weight {
  using T = Tile<P>;

  float own[held > 0 ? 4 * held : 1];
  Quad* rest;

  static RNNKERN_HOST_DEVICE Quad* carve(device::Carver& carver) {
    return carver.take<Quad>((T::quads - held) * sample_threads);
  }

  // weight[unit * row_step + column * column_step], zero where there is none.
  RNNKERN_DEVICE void load(const float* weight, int64_t n, int64_t row_step, int64_t column_step, Quad* room) {
    rest = room;
    const auto at = [&](int column) {
      return T::unit() < n && column < n ? weight[T::unit() * row_step + column * column_step] : 0.0f;
    };
    RNNKERN_UNROLL
    for (int k = 0; k < T::quads; ++k) {
      const int c = T::column(k);
      if (k < held) {
        RNNKERN_UNROLL
        for (int e = 0; e < 4; ++e) own[4 * k + e] = at(c + e);
      } else {
        rest[(k - held) * sample_threads + device::thread()] = {at(c), at(c + 1), at(c + 2), at(c + 3)};
      }
    }
  }

  // Adds this thread's part of the product with a vector of P in shared memory, on 16 bytes.
  RNNKERN_DEVICE void multiply(float& sum, const float* vector) const {
    RNNKERN_UNROLL
    for (int k = 0; k < T::quads; ++k) {
      const Quad x = *reinterpret_cast<const Quad*>(vector + T::column(k));
      const Quad w = k < held ? Quad{own[4 * k], own[4 * k + 1], own[4 * k + 2], own[4 * k + 3]}
                              : rest[(k - held) * sample_threads + device::thread()];
      sum += w.x * x.x;
      sum += w.y * x.y;
      sum += w.z * x.z;
      sum += w.w * x.w;
    }
  }

  RNNKERN_DEVICE float product(const float* vector) const {
    float sum = 0;
    multiply(sum, vector);
    return T::total(sum);
  }
};

// How many quads of U_a stay in registers, forward: as many as the compiler takes without spilling.
template <int P>
constexpr int held_of_keys = P > 64 ? Tile<P>::quads / 2 : Tile<P>::quads;

}  // namespace rnnkern::relevancy
