// How a block that works on one sample divides the work: sums over its warps and threads, in an order that only depends
// on n and kappa, and the events of a memory.
#pragma once

#include "cells/math.h"
#include "device/sums.h"
#include "relevancy/cuda/problem.h"

namespace rnnkern::relevancy {

constexpr int stepwise_attention_threads = 256,
              stepwise_attention_warps = stepwise_attention_threads / device::warp_size;

using device::shuffle_xor_any, device::warp_sum;

struct alignas(16) Four {
  float x, y, z, w;
};

RNNKERN_DEVICE float exponential(float x) { return ::expf(x); }
RNNKERN_DEVICE double exponential(double x) { return ::exp(x); }

template <class T>
RNNKERN_DEVICE T greater(T x, T y) {
  return x < y ? y : x;
}

// The shared memory of the block.
template <class T>
struct Scratch {
  static constexpr int values = sizeof(T) == 8 ? 2 : 4, columns = values * device::warp_size;  // of a pass over columns

  T *of_warps, *partial;  // (warps,); (2, warps, columns)
  int64_t* taken;

  static RNNKERN_HOST_DEVICE Scratch carve(device::SharedArena& arena) {
    Scratch scratch;
    scratch.of_warps = arena.alloc<T>(stepwise_attention_warps);
    scratch.partial = arena.alloc<T>(2 * stepwise_attention_warps * columns);
    scratch.taken = arena.alloc<int64_t>(1);
    return scratch;
  }

  // The sum over the block, in every thread.
  RNNKERN_DEVICE T sum(T x) const {
    share(warp_sum(x));
    T all = of_warps[0];
    for (int w = 1; w < stepwise_attention_warps; ++w) all += of_warps[w];
    return all;
  }
  RNNKERN_DEVICE T max(T x) const {
    RNNKERN_UNROLL
    for (int mask = device::warp_size / 2; mask > 0; mask /= 2) x = greater(x, shuffle_xor_any(x, mask));
    share(x);
    T all = of_warps[0];
    for (int w = 1; w < stepwise_attention_warps; ++w) all = greater(all, of_warps[w]);
    return all;
  }
  // Sums `count` quantities over warps, for columns first..first+columns-1 below `hidden`, and calls f(column, totals).
  template <int count, class F>
  RNNKERN_DEVICE void over_warps(const T (&own)[count][values], int64_t first, int64_t hidden, F f) const {
    using device::thread;
    RNNKERN_UNROLL
    for (int k = 0; k < count; ++k) {
      RNNKERN_UNROLL
      for (int c = 0; c < values; ++c) {
        partial[(k * stepwise_attention_warps + device::warp()) * columns + c * device::warp_size + device::lane()] =
            own[k][c];
      }
    }
    device::block_barrier();
    if (thread() < columns && first + thread() < hidden) {
      T totals[count] = {};
      RNNKERN_UNROLL
      for (int k = 0; k < count; ++k) {
        for (int w = 0; w < stepwise_attention_warps; ++w)
          totals[k] += partial[(k * stepwise_attention_warps + w) * columns + thread()];
      }
      f(first + thread(), totals);
    }
    device::block_barrier();  // until all have read `partial`
  }

 private:
  RNNKERN_DEVICE void share(T x) const {
    device::block_barrier();  // until all have read the previous values
    if (device::lane() == 0) of_warps[device::warp()] = x;
    device::block_barrier();
  }
};

// The score of a key, computed by one warp; all its lanes get it.
template <class T>
RNNKERN_DEVICE T score(const T* query, bool none, const T* key, const T* v, int64_t hidden, bool dot) {
  T sum = 0;
  for (int64_t i = device::lane(); i < hidden; i += device::warp_size) {
    const T q = none ? T(0) : query[i];
    sum += v[i] * (dot ? q * key[i] : tanh(q + key[i]));
  }
  return warp_sum(sum);
}

}  // namespace rnnkern::relevancy
