// The kernels that run before the recurrence with layers of Givens rotations, and after its backward.
#pragma once

#include "orthogonal/cuda/givens_problem.h"

namespace rnnkern::givens {

// One entry per thread.
template <class T>
struct TurnKernel {
  using Problem = TurnProblem<T>;
  static constexpr char header[] = "orthogonal/cuda/givens_entries.cuh";
  static constexpr int threads = 256;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t entry = int64_t(device::block()) * threads + device::thread();
    if (entry >= p.packing.bias()) return;
    SinCos<T> turn{1, 0};
    p.packing.find(entry, [&](int tensor, int64_t place, bool of_use) {
      if (of_use) turn = {p.cosines[tensor][place], p.sines[tensor][place]};
    });
    p.sincos[entry] = turn;
  }
};

// One entry per thread, adding its parts in a fixed order.
template <class T>
struct SumKernel {
  using Problem = SumProblem<T>;
  static constexpr char header[] = "orthogonal/cuda/givens_entries.cuh";
  static constexpr int threads = 256, chains = 4;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t entry = int64_t(device::block()) * threads + device::thread(), total = p.packing.total();
    if (entry >= total) return;
    T sums[chains] = {};
    for (int64_t part = 0; part < p.parts; part += chains) {
      RNNKERN_UNROLL
      for (int chain = 0; chain < chains; ++chain) {
        if (part + chain < p.parts) sums[chain] += p.sums[(part + chain) * total + entry];
      }
    }
    const T sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    p.packing.find(entry, [&](int tensor, int64_t place, bool of_use) { p.to[tensor][place] = of_use ? sum : T(0); });
  }
};

}  // namespace rnnkern::givens
