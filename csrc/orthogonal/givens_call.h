// What the drivers of layers of rotations share: kernels by the SIMD level in use, and by how many threads they run.
#pragma once

#include <omp.h>

#include <type_traits>

#include "common/counters.h"
#include "common/levels.h"
#include "common/reuse.h"
#include "orthogonal/givens_problem.h"

namespace rnnkern {

template <class T>
GivensKernels<T> givens_kernels_in_use() {
  return at_level_in_use([]<SimdLevel level>() { return givens_kernels_at<T, level>(); });
}

inline void count_givens_kernel(const char* family, const char* direction, const Tensor& x) {
  const char* dtype = x.scalar_type() == ScalarType::Double ? "float64" : "float32";
  count(family, direction, dtype, name(simd_level()));
}

// `rotations` is the work, which decides how many threads are worth their while.
template <class Problem>
void run_givens(GivensKernel<Problem> kernel, Problem problem, int64_t rotations, const Tensor& like) {
  constexpr int64_t worth_sharing = 32768;
  const int64_t all = omp_in_parallel() ? 1 : get_num_threads(), worth = 1 + rotations / worth_sharing;
  const int threads = int(worth < all ? worth : all);
  const Tensor memory = reusable(like, {kernel.room(problem, threads)}, like.scalar_type());
  problem.room = write<std::remove_reference_t<decltype(*problem.room)>>(memory);
  if (threads == 1) return kernel.run(problem, Member{0, 1, nullptr});
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  kernel.run(problem, Member{omp_get_thread_num(), omp_get_num_threads(), &barrier});
}

}  // namespace rnnkern
