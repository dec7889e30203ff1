// Who runs a call on a CPU: which kernels, how many threads, where their room is. Included by the drivers.
#pragma once

#include <omp.h>

#include "common/counters.h"
#include "common/levels.h"
#include "common/reuse.h"
#include "orthogonal/orthogonal.h"
#include "orthogonal/problem.h"

namespace rnnkern {
namespace {

template <class T>
OrthogonalKernels<T> kernels() {
  return at_level_in_use([]<SimdLevel level>() { return orthogonal_kernels_at<T, level>(); });
}

void count_kernel(const char* family, const char* direction, const Tensor& x) {
  count(family, direction, x.scalar_type() == ScalarType::Double ? "float64" : "float32", name(simd_level()));
}

template <class F>
auto by_dtype(const Tensor& x, F f) {
  return by_float_or_double(x, "rnnkern: orthogonal weights must be float32 or float64", f);
}

// The sizes of a tensor without its last ones, and others in their place.
std::vector<int64_t> with(const Tensor& x, int64_t dropped, std::initializer_list<int64_t> last) {
  const auto sizes = x.sizes();
  std::vector<int64_t> found(sizes.begin(), sizes.end() - dropped);
  found.insert(found.end(), last);
  return found;
}

constexpr int64_t own_matrix = 160;        // rows: of larger ones a core's cache does not hold all that is at work
constexpr int64_t worth_sharing = 131072;  // multiplications of a product

int at_most_all(int64_t threads) {
  const int64_t most = omp_in_parallel() ? 1 : get_num_threads();
  return int(threads < most ? threads : most);
}

// Members take matrices of their own where there are several that are small; else they share out each one.
// part(problem, first, count) is the problem of some of its matrices.
template <class Problem, class Part>
void run(Kernel<Problem> kernel, Problem problem, const Tensor& like, Part part) {
  const int64_t n = problem.size, work = n * n * n;
  const bool apart = problem.count > 1 && n <= own_matrix;
  const int threads = at_most_all(1 + (apart ? problem.count : 1) * work / worth_sharing);
  const int64_t room = kernel.room(problem, apart ? 1 : threads);
  const Tensor memory = reusable(like, {room * (apart ? threads : 1)}, like.scalar_type());
  problem.room = write<std::remove_reference_t<decltype(*problem.room)>>(memory);
  if (threads == 1) return kernel.run(problem, Member{0, 1, nullptr});
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  {
    const int rank = omp_get_thread_num(), size = omp_get_num_threads();
    if (apart) {
      const int64_t first = problem.count * rank / size, last = problem.count * (rank + 1) / size;
      Problem mine = part(problem, first, last - first);
      mine.room += rank * room;
      kernel.run(mine, Member{0, 1, nullptr});
    } else {
      kernel.run(problem, Member{rank, size, &barrier});
    }
  }
}

}  // namespace
}  // namespace rnnkern
