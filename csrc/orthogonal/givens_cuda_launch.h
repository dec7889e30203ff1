// The kernels of one precision, for the file that compiles them.
#pragma once

#include <type_traits>

#include "device/launch.h"
#include "orthogonal/givens_cuda_backward.h"
#include "orthogonal/givens_cuda_forward.h"
#include "orthogonal/givens_cuda_kernels.h"

namespace rnnkern::givens {

// One entry per thread.
template <class T>
struct TurnKernel {
  using Problem = TurnProblem<T>;
  static constexpr int threads = 256;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t entry = int64_t(device::block()) * threads + device::thread();
    if (entry >= p.packing.bias()) return;
    Turn<T> turn{1, 0};
    p.packing.find(entry, [&](int tensor, int64_t place, bool of_use) {
      if (of_use) turn = {p.cosines[tensor][place], p.sines[tensor][place]};
    });
    p.turns[entry] = turn;
  }
};

// One entry per thread, its parts always in the same order.
template <class T>
struct SumKernel {
  using Problem = SumProblem<T>;
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

// f(parts, each), as compile-time numbers, of a packing that `each_for` gave.
template <class T, int parts, int each, class F>
auto with_sizes(const Packing& packing, F f) {
  if constexpr (2 * each <= most_each && fits<T>(2 * each * parts)) {
    if (packing.each > each) return with_sizes<T, parts, 2 * each>(packing, f);
  }
  return f(std::integral_constant<int, parts>(), std::integral_constant<int, each>());
}

template <class T, class F>
auto with_sizes(const Packing& packing, F f) {
  return packing.is_complex ? with_sizes<T, 2, 2>(packing, f) : with_sizes<T, 1, 2>(packing, f);
}

template <class Kernel, class Problem>
int launch_entries(const Problem& problem, int64_t entries, void* stream) {
  return device::launch<Kernel>({.blocks = (entries + Kernel::threads - 1) / Kernel::threads}, problem, stream);
}

template <class T>
int Kernels<T>::turn(const TurnProblem<T>& problem, void* stream) {
  return launch_entries<TurnKernel<T>>(problem, problem.packing.bias(), stream);
}

template <class T>
int Kernels<T>::sum(const SumProblem<T>& problem, void* stream) {
  return launch_entries<SumKernel<T>>(problem, problem.packing.total(), stream);
}

template <class T>
int Kernels<T>::forward(const ForwardProblem<T>& problem, int64_t blocks, void* stream) {
  return with_sizes<T>(problem.packing, [&](auto parts, auto each) {
    using Kernel = ForwardKernel<T, parts(), each()>;
    return device::launch<Kernel>({.blocks = blocks, .shared_bytes = Kernel::bytes()}, problem, stream);
  });
}

template <class T>
int Kernels<T>::backward(const BackwardProblem<T>& problem, int64_t blocks, void* stream) {
  const int64_t bytes = backward_bytes(problem.packing, problem.on_chip ? problem.packing.total() : 0);
  return with_sizes<T>(problem.packing, [&](auto parts, auto each) {
    using Kernel = BackwardKernel<T, parts(), each()>;
    return device::launch<Kernel>({.blocks = blocks, .shared_bytes = bytes}, problem, stream);
  });
}

template <class T>
int64_t Kernels<T>::backward_bytes(const Packing& packing, int64_t sums) {
  return with_sizes<T>(packing, [&](auto parts, auto each) { return BackwardKernel<T, parts(), each()>::bytes(sums); });
}

}  // namespace rnnkern::givens
